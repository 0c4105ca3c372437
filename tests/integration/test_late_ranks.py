"""A rank that lives and lets the others wait, in the start or in a step, is named within that limit; one that
evaluates or saves has the longer one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import worker_environment
from test_train import end, events_of, start, steps_of

from paceline.core.errors import ExitCode
from paceline.core.rundir import RunDir
from paceline.runlog.events import Error, Eval

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]
#: Rank 1 sleeps when its model is there, in its third window, or in an evaluation.
SLEEPING = """
import time
from paceline.strategies.{module} import {base}

class Sleeping({base}):
    windows = 0

    def prepare(self, *args):
        handle = super().prepare(*args)
        self.late("start", 600)
        return handle

    def zero_grad(self, handle):
        self.windows += 1
        if self.windows > 3:
            self.late("step", 600)
        super().zero_grad(handle)

    def inference(self, handle):
        self.late("evaluation", 1.5 * {limit})
        return super().inference(handle)

    def late(self, where, seconds):
        if self.world.rank == 1 and where == "{where}":
            time.sleep(seconds)
"""
OF_START, OF_STEP = 12, 5  # seconds; that of the start holds the ranks' meeting too


def begin(tiny: Tiny, folder: Path, strategy: str, where: str, **training: Any) -> Any:
    module, base = {"ddp": ("ddp", "DDP"), "fsdp": ("fsdp.strategy", "FSDP")}[strategy]
    (folder / "sleeping.py").write_text(SLEEPING.format(module=module, base=base, where=where, limit=OF_STEP))
    config = tiny(
        distributed_strategy="sleeping:Sleeping",
        start_timeout=OF_START if where == "start" else 240,  # on a busy machine, too
        step_timeout=OF_STEP,
        **training,
    )
    return start(config, folder, 2, {"PYTHONPATH": f"{folder}:{worker_environment()['PYTHONPATH']}"})


@pytest.mark.parametrize(
    ("strategy", "where"),
    [
        ("ddp", "step"),
        pytest.param("fsdp", "start", marks=pytest.mark.full),
        pytest.param("ddp", "start", marks=pytest.mark.slow),
        pytest.param("fsdp", "step", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_sleeps_is_named_within_its_limit(
    strategy: str, where: str, tiny: Tiny, tmp_path: Path
) -> None:
    done = end(begin(tiny, tmp_path, strategy, where, max_steps=1000))
    third = 3 if strategy == "ddp" else 4  # DDP's warm-up is a window too
    place = {"start": "in the start", "step": f"in step {third}"}[where]
    limit, key = {
        "start": (OF_START, "training.start_timeout"),
        "step": (OF_STEP, "training.step_timeout"),
    }[where]
    assert done.code == ExitCode.PEER_SILENT, done.err
    assert f"rank 1 is late {place}: the others wait for it" in done.err
    assert f"raise {key} (now {limit} s)" in done.err
    for rank in (0, 1):
        [error] = [e for e in events_of(tmp_path / "run", rank) if isinstance(e, Error)]
        assert (error.diagnostic.code, error.diagnostic.where) == ("runtime.rank_late", "rank 1")
        assert "rank 0 waits in gloo:" in error.diagnostic.found
    run = RunDir.at(tmp_path / "run")
    result = json.loads(run.result_json.read_text())
    found = result["diagnostics"][0]["evidence"]
    # The line at which it sleeps, and the stacks of both, without anybody's asking
    line = next(n for n, text in enumerate(SLEEPING.splitlines(), 1) if "time.sleep" in text)
    assert found["place"].startswith("late (") and found["place"].endswith(f"/sleeping.py:{line})")
    assert found["place"] in done.err
    assert f'sleeping.py", line {line} in late' in run.stacks(1).read_text()
    assert "Thread" in run.stacks(0).read_text()
    assert found["late_ranks"] == [1] and (found["key"], found["limit_seconds"]) == (key, limit)


RECEIVING = """
import torch
import torch.distributed as dist
from paceline.strategies.ddp import DDP

class Receiving(DDP):
    windows = 0

    def zero_grad(self, handle):
        self.windows += 1
        if self.windows > 3:
            dist.recv(torch.zeros(1), 1 - self.world.rank)
        super().zero_grad(handle)
"""


def test_ranks_that_receive_from_each_other_are_named_and_end(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "receiving.py").write_text(RECEIVING)
    config = tiny(
        distributed_strategy="receiving:Receiving", max_steps=1000, start_timeout=240, step_timeout=OF_STEP
    )
    path = {"PYTHONPATH": f"{tmp_path}:{worker_environment()['PYTHONPATH']}"}
    done = end(start(config, tmp_path, 2, path))
    assert done.code == ExitCode.PEER_SILENT, done.err
    assert "waits in recv for" in done.err and "every rank is alive" in done.err
    assert "in zero_grad (" in done.err, "where the other one stands"
    assert "receiving.py" in RunDir.at(tmp_path / "run").stacks(1).read_text()


@pytest.mark.slow
def test_one_that_evaluates_has_the_longer_limit(tiny: Tiny, tmp_path: Path) -> None:
    config = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    made = begin(
        lambda **training: {
            **(one := tiny(**training)),
            "data": {**one["data"], "eval": one["data"]["train"]},
        },
        tmp_path,
        "ddp",
        "evaluation",
        **config,
    )
    done = end(made)
    assert done.code == 0, done.err
    assert [e.step for e in events_of(tmp_path / "run") if isinstance(e, Eval)] == [1, 2]
    assert len(steps_of(tmp_path / "run")) == 2
