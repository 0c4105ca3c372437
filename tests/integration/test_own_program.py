"""A program of one's own that trains: under Python, torchrun and accelerate, as its docstring says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from support import ROOT, worker_environment, write_yaml

import paceline
from paceline.api import training
from paceline.core.errors import BusyError
from paceline.core.rundir import RunDir

pytestmark = [pytest.mark.integration]
TRAINER = ROOT / "examples/custom_trainer.py"
WAYS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "accelerate": [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"],
}


@pytest.mark.parametrize(
    "way", [pytest.param(name, marks=() if name == "python" else pytest.mark.slow) for name in WAYS]
)
def test_the_trainer_of_the_guide_runs_under(
    way: str, tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    config = write_yaml(tmp_path / "config.yaml", tiny(max_steps=2, use_cpu=True))
    ran = subprocess.run(
        [*WAYS[way], str(TRAINER), str(config)],
        env=worker_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    run = RunDir.at(tmp_path / "run")
    plan = json.loads(run.plan_json.read_text())
    assert plan["world_size"] == (1 if way == "python" else 2)
    assert plan["config"]["training"]["distributed_strategy"] == "custom_trainer:CustomDistributedTrainer"
    assert json.loads(run.result_json.read_text())["outcome"] == "completed"


def test_a_start_that_loses_the_race_for_the_directory_raises_as_the_command_line_answers(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes the lock between the claim and the rank's own."""
    started = training.start_ranks
    lock = FileLock(str(RunDir.at(tmp_path / "run").lock))

    def late(*args: Any) -> int:
        with lock:
            return started(*args)

    monkeypatch.setattr(training, "start_ranks", late)
    monkeypatch.setenv("PACELINE_LEDGER", "off")
    with pytest.raises(BusyError) as lost:
        paceline.train(tiny(max_steps=2, use_cpu=True), nproc=1, quiet=True)
    assert lost.value.exit_code == 75 and lost.value.diagnostics[0].code == "run.in_use"
