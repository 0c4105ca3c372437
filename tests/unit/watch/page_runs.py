"""Run folders for tests of the page, written line by line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.core.rundir import RunDir
from paceline.watch.page.view import RunView

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
Line = dict[str, Any]


def begin(start: int = 0, total: int = 10) -> Line:
    return {
        "kind": "run_started",
        "plan_digest": "d",
        "world_size": 1,
        "start_step": start,
        "total_steps": total,
    }


def step(number: int, loss: Any = None, memory: int = 1000, **extras: float) -> Line:
    value = 10.0 - number if loss is None else loss
    return {
        "kind": "step",
        "step": number,
        "epoch": 0.1,
        "loss": value,
        "step_seconds": 1.0,
        "tokens_per_second": 50.0,
        "memory_bytes": memory,
        "extras": extras,
    }


def samples(number: int, text: str = "hello") -> Line:
    return {"kind": "samples", "step": number, "rows": [{"prompt": text, "completion": text, "reward": 0.5}]}


def notice(what: str = "too slow", kind: str = "notice") -> Line:
    found = {
        "code": "data.format",
        "what": what,
        "where": "a.jsonl:3",
        "hint": "do this",
        "severity": "warning",
    }
    return {"kind": kind, "diagnostic": found}


def write_run(
    root: Path, lines: Iterable[Line], rank: int = 0, tail: str = "", plan: Line | None = None
) -> RunDir:
    run = RunDir.at(root)
    run.events_dir.mkdir(parents=True, exist_ok=True)
    run.plan_json.write_text(json.dumps(plan or {"algorithm": "sft", "strategy": "ddp", "world_size": 1}))
    with run.events(rank).open("a") as file:
        for i, line in enumerate(lines):
            file.write(json.dumps({"time": 100.0 + i, "rank": rank, **line}, separators=(",", ":")) + "\n")
        file.write(tail)
    return run


def view_of(run: RunDir, cache: Path) -> RunView:
    view = RunView(run, cache)
    while view.advance(5.0) < 1:
        pass
    return view


def losses(view: RunView) -> dict[float, float]:
    curve = view.series(["steps/loss"], "step", 1000, None, None)["steps/loss"]
    return dict(zip(curve["x"], curve["mean"], strict=True))
