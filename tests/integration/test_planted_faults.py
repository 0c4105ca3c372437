"""Faults of one rank among four, in five ways to train, at the start, in a step, a save and an evaluation:
the run's record names the right rank and class, within seconds of the limit, and nothing is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import warm
from support import ROOT, worker_environment, write_yaml
from test_restarts import those_with

from paceline.core.rundir import RunDir

pytestmark = [pytest.mark.integration]
RANKS, OF_STEP, OTHERWISE, LATER = 4, 8, 30, 15  # seconds: the limits, and the time to a verdict after them
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"distributed_strategy": "ddp"},
    "fsdp": {"distributed_strategy": "fsdp"},
    "zero2": {"distributed_strategy": "zero2"},
    "pipeline": {
        "distributed_strategy": "pipeline",
        "parallelism": {"pp_size": 2},
        "gradient_accumulation_steps": 2,
    },
    "grpo": {
        "distributed_strategy": "ddp",
        "algorithm": "grpo",
        "rollout": {
            "rewards": [{"name": "length", "options": {"target": 6}}],
            "num_generations": 2,
            "max_completion_length": 4,
        },
    },
}
CODES = {
    "kill": {"launch.worker_killed"},
    "exit": {"launch.rank_left"},
    "raise": {"training.exception"},
    "full": {"training.system_refused"},
    "sleep": {"runtime.rank_late"},
    "stop": {"runtime.rank_silent"},
    "mismatch": {"runtime.collective_stuck"},
    "recv": {"runtime.collective_stuck"},
}


@dataclass(frozen=True)
class Fault:
    way: str
    kind: str
    where: str
    rank: int

    def __str__(self) -> str:
        return f"{self.way}-{self.where}-{self.kind}-{self.rank}"

    @property
    def limit(self) -> float:
        if self.kind not in ("sleep", "stop", "mismatch", "recv"):
            return 0.0
        return {"step": max(OF_STEP, 10 if self.kind == "stop" else 0), "start": 60}.get(
            self.where, OTHERWISE
        )


STEPS = [
    (way, kind, "step") for way in WAYS for kind in ("kill", "stop", "raise", "exit", "sleep", "mismatch")
]
OTHER = [
    *((way, kind, "save") for way in ("ddp", "fsdp", "pipeline") for kind in ("kill", "raise", "sleep")),
    *((way, kind, "eval") for way in ("ddp", "fsdp") for kind in ("kill", "raise", "sleep")),
    *(("ddp", kind, "start") for kind in ("kill", "raise", "exit")),
    ("ddp", "recv", "step"),
    ("fsdp", "full", "save"),
]
FAULTS = [Fault(*fault, 1 + n % (RANKS - 1)) for n, fault in enumerate((*STEPS, *OTHER))]
IN_CI = {"ddp-step-mismatch-3"}


def verdict(fault: Fault, config: dict[str, Any], folder: Path) -> tuple[str, float]:
    """What is wrong about how the run ended (empty: nothing), and the seconds from the fault to its end."""
    mark, run = folder / "planted-at", RunDir.at(config["training"]["output_dir"])
    options = {"kind": fault.kind, "where": fault.where, "of": fault.rank, "mark": str(mark)}
    options["nth"] = 3 if fault.where == "step" else 1
    config["training"]["callbacks"] = [{"name": "planted:Planted", "options": options}]
    mine = f"OF_THIS_FAULT={folder}"
    environ = {"PYTHONPATH": f"{Path(__file__).parent}:{ROOT}", "OF_THIS_FAULT": str(folder)}
    argv = [sys.executable, "-m", "paceline.cli.main", "train", str(write_yaml(folder / "c.yaml", config))]
    with (folder / "out").open("wb") as out:
        process = warm.Popen(
            [*argv, "--nproc", str(RANKS)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=worker_environment(environ),
            cwd=folder,
            start_new_session=True,
        )
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "it hangs", 300.0
    if not mark.exists():
        return f"never planted: {(folder / 'out').read_text()[-600:]}", 0.0
    seconds = time.time() - float(mark.read_text())
    record = json.loads(run.exits().read_text())
    cause, wrong = record["cause"] or {}, []
    code = cause.get("code", "")
    if code not in CODES[fault.kind]:
        wrong.append(f"code {code} ({cause.get('what', '')[:200]})")
    evidence = cause.get("evidence", {})
    named = {record["rank"], evidence.get("rank"), *evidence.get("silent_ranks", ())}
    if CODES[fault.kind] != {"runtime.collective_stuck"} and fault.rank not in named:
        wrong.append(f"rank {named}")
    if fault.kind == "sleep" and "planted.py" not in str(evidence.get("place", "")):
        wrong.append(f"place {evidence.get('place')}")
    if seconds > fault.limit + LATER:
        wrong.append(f"{seconds:.0f} s")
    if left := those_with(mine):
        wrong.append(f"left {left}")
    return "; ".join(wrong), seconds


@pytest.fixture
def faulty(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> Callable[[Fault], dict[str, Any]]:
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"question": f"say red {i}", "answer": "red"} for i in range(16)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(fault: Fault) -> dict[str, Any]:
        config = tiny(
            output_dir=str(tmp_path / str(fault) / "run"),
            max_steps=8,
            start_timeout=240,
            step_timeout=OF_STEP,
            ddp_timeout=OTHERWISE,
            save_strategy="steps",
            save_steps=4,
            **({"eval_strategy": "steps", "eval_steps": 4} if fault.where == "eval" else {}),
            **WAYS[fault.way],
        )
        if fault.where == "eval":
            config["data"]["validation_split"] = 8
        if fault.way == "grpo":
            config["data"]["train"] = str(prompts)
        (tmp_path / str(fault)).mkdir()
        return config

    return make


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=str(fault), marks=[] if str(fault) in IN_CI else [pytest.mark.slow])
        for fault in FAULTS
    ],
)
def test_a_fault_is_named(
    fault: Fault,
    faulty: Callable[[Fault], dict[str, Any]],
    tmp_path: Path,
    record_property: Callable[..., None],
) -> None:
    wrong, seconds = verdict(fault, faulty(fault), tmp_path / str(fault))
    record_property("seconds", round(seconds, 1))
    assert wrong == ""
