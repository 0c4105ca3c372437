"""Whoever looks at a run that its owner deletes meanwhile says so or shows nothing; no OSError ends it.

The reader is run once for each of its calls of the file system (``tests/vanishing.py``).
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_runs import begin, notice, samples, step, write_run
from vanishing import deleted_at_every_call

from paceline.api.run import Run, checkpoints
from paceline.api.several_runs import facts_below
from paceline.checkpoint.format import verify_files
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.doctor import run_failure
from paceline.launch import claim_run_dir
from paceline.launch.environment import deepspeed_build_locks
from paceline.launch.preflight import facts, once_per_node
from paceline.watch.page import documents
from paceline.watch.page.view import Runs, RunView


def a_run(root: Path) -> RunDir:
    run = write_run(root, [begin(), *(step(n) for n in range(1, 4)), samples(2), notice()])
    write_run(root, [step(1)], rank=1)
    run.result_json.write_text("{}")
    run.config_yaml.write_text("model: {config: {model_type: llama}}\n")
    run.logs.mkdir()
    (run.logs / "training.log").write_text("a line\n")
    (run.events_dir / "exits-0.json").write_text(json.dumps({"ranks": [{"rank": 0, "code": 1}]}))
    (run.events_dir / "flight_0.json").write_text("{}")
    (run.events_dir / "flight_1.json").write_text("{}")
    (run.checkpoints / "17" / "fd").mkdir(parents=True)
    (run.checkpoints / "17" / "fd" / "3").symlink_to("/x/lock")
    (run.root / "was").mkdir()
    for name in ("a", "b"):
        (run.root / "was" / name).write_text("")
        os.utime(run.root / "was" / name, (0, 0))
    folder = run.checkpoints / "step-00000003"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return run


def page(run: RunDir, cache: Path) -> None:
    view = RunView(run, cache)
    try:
        for _ in range(2):
            view.advance(1.0)
            view.summary()
        view.findings(), view.checkpoints()
        documents.plan_of(run), documents.config_of(run), documents.samples_of(view, None, 5)
        documents.log_names(run), documents.log_page(run, "training.log", "", None, 10)
    finally:
        view.close()


def rows(run: RunDir, cache: Path) -> None:
    with Runs(run.root.parent, cache) as runs:
        assert isinstance(runs.rows(), list)


def api(run: RunDir, cache: Path) -> None:
    found = Run(run.root)
    assert found.history is not None and found.diagnostics is not None and found.result is not None
    found.events(), found.arrays(), checkpoints(run.root), repr(found)


READERS: dict[str, Callable[[RunDir, Path], Any]] = {
    "page": page,
    "rows": rows,
    "api": api,
    "facts_below": lambda run, cache: facts_below(run.root.parent),
    "scan": lambda run, cache: (
        verify_files.scan(run.checkpoints),
        verify_files.leftover_hints(run.checkpoints),
    ),
    "flights": lambda run, cache: list(run_failure.run_findings(run)),
    "count": lambda run, cache: facts.count_checkpoints(run),
    "holds_work": lambda run, cache: claim_run_dir.holds_work(run),
}


def owner(run: RunDir, cache: Path) -> None:
    """Its folders as if they were ``/proc``'s: processes that end."""
    assert deepspeed_build_locks.owner_of(run.plan_json, run.checkpoints) is None


def former(run: RunDir, cache: Path) -> None:
    """Records of former starts, which another start removes, too."""
    once_per_node.remove_old(run.root / "was")


READERS |= {"owner": owner, "former": former}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "the folder") for name in READERS),
        ("scan", "the path"),
        *(pytest.param(name, "the path", marks=pytest.mark.full) for name in READERS if name != "scan"),
    ],
)
def test_at_every_call(name: str, mode: str, tmp_path: Path) -> None:
    whole, caches = a_run(tmp_path / "whole" / "run").root, itertools.count()

    def read(run: Path) -> None:
        READERS[name](RunDir.at(run), tmp_path / f"cache-{next(caches)}")

    assert len(deleted_at_every_call(read, whole, tmp_path / "here", mode)) >= 2


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_run_without_a_plan_is_named(text: str | None, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    run.plan_json.unlink()
    if text is not None:
        run.plan_json.write_text(text)
    with pytest.raises(ConfigError, match="no readable plan.json"):
        _ = Run(run.root).plan
    assert facts_below(tmp_path)[0].strategy == ""
