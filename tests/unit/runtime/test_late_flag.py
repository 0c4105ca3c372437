"""A stop request on an accelerator is seen by every rank in the call after the one that it was made in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.runtime import late_flag
from paceline.runtime.late_flag import LateFlag
from paceline.runtime.world import World


def accelerated(monkeypatch: pytest.MonkeyPatch, others: list[int]) -> tuple[LateFlag, list[str]]:
    """A flag in a world of two with an accelerator, whose other rank sets these flags; and what was done."""
    done: list[str] = []
    monkeypatch.setattr(
        late_flag.dist,
        "all_reduce",
        lambda tensor, op: done.append("reduce") or tensor.fill_(max(int(tensor[0]), others.pop(0))),
    )

    class Event:
        def record(self) -> None:
            done.append("record")

        def synchronize(self) -> None:
            done.append("wait for the copy")

    monkeypatch.setattr(late_flag.torch.cuda, "Event", Event)
    to = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, where, **_: self if str(where) == "cuda:0" else to(self, "cpu")
    )
    world: Any = SimpleNamespace(world_size=2, device=torch.device("cuda", 0), backend="nccl")
    return LateFlag(world), done


def test_it_is_read_in_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    flag, done = accelerated(monkeypatch, [0, 1, 0])
    assert [flag(False), flag(False), flag(False)] == [False, False, True]
    assert done[:3] == ["reduce", "record", "wait for the copy"]


def test_ones_own_flag_is_late_too(monkeypatch: pytest.MonkeyPatch) -> None:
    flag, _ = accelerated(monkeypatch, [0, 0])
    assert [flag(True), flag(True)] == [False, True]


def test_alone_and_on_a_cpu_it_is_read_at_once() -> None:
    flag = LateFlag(World.single())
    assert [flag(True), flag(False)] == [True, False]
