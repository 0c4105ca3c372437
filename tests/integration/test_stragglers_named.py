"""A rank for which the others wait is named at the end with its cost, whatever makes it slow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run
from test_train import events_of, train

from paceline.runlog.events import Notice, TimeBands

pytestmark = [pytest.mark.integration]
MINE = """
import time
from paceline.strategies.ddp import DDP
from paceline.strategies.deepspeed.strategy import DeepSpeed
from paceline.strategies.fsdp.strategy import FSDP


class Slow:
    def prepare(self, role, build, optimizer):
        handle = super().prepare(role, build, optimizer)
        if self.world.rank == 1:
            handle.root.register_forward_pre_hook(lambda *_: time.sleep(SECONDS))
        return handle


class OfDdp(Slow, DDP): ...


class OfFsdp(Slow, FSDP): ...


class OfZero(Slow, DeepSpeed): ...
"""


@pytest.mark.parametrize(
    ("strategy", "seconds"),
    [
        ("OfDdp", 0.4),
        ("OfDdp", 0.0),
        pytest.param("OfFsdp", 0.4, marks=pytest.mark.slow),
        pytest.param("OfZero", 0.4, marks=pytest.mark.slow),
    ],
)
def test_a_slow_rank_is_named_with_its_cost(
    strategy: str,
    seconds: float,
    tiny: Callable[..., dict[str, Any]],
    paceline: Callable[..., Run],
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace("SECONDS", str(seconds)))
    done = train(paceline, tiny(distributed_strategy=f"mine:{strategy}", max_steps=10), tmp_path, 2)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    bands, notes = (
        result["time_bands"],
        [e.diagnostic for e in events_of(tmp_path / "run") if isinstance(e, Notice)],
    )
    print(bands, result["effective_time"])
    late = [note for note in notes if note.code == "training.straggler"]
    assert (bands["ranks"], bands["steps"]) == (2, 10)
    if not seconds:
        assert bands["stragglers"] == [] and late == []
        return
    [straggler] = bands["stragglers"]
    assert straggler["rank"] == 1 and straggler["seconds"] == pytest.approx(10 * seconds, rel=0.3)
    [note] = late
    assert "rank 1" in note.what and note.evidence["percent"] == straggler["percent"] > 30
    of_rank = {
        rank: [e for e in events_of(tmp_path / "run", rank) if isinstance(e, TimeBands)] for rank in (0, 1)
    }
    waits = {rank: sum(e.wait for e in events) for rank, events in of_rank.items()}
    assert waits[0] > 3.0 > waits[1]
