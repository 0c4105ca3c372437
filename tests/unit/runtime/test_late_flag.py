"""A stop request on an accelerator is seen by every rank in the call after the one that it was made in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.runtime.process_group import background_exchange
from paceline.runtime.process_group.background_exchange import LateFlag
from paceline.runtime.process_group.world import World

KINDS = [("cuda", "nccl"), ("xpu", "xccl"), ("npu", "hccl")]


class Place(str):
    """A device of a name that this torch need not know."""

    @property
    def type(self) -> str:
        return str(self)


class Accelerated:
    """A world of two with an accelerator, whose other rank sets these flags; and what was done."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, others: list[int], kind: str = "cuda", backend: str = "nccl"
    ) -> None:
        self.done: list[str] = []
        self.others, place = others, Place(kind)
        monkeypatch.setattr(background_exchange.dist, "all_reduce", self._reduce)
        event = SimpleNamespace(
            record=lambda: self.done.append("record"),
            synchronize=lambda: self.done.append("wait for the copy"),
        )
        self.driver = SimpleNamespace(Event=lambda: event)
        monkeypatch.setattr(background_exchange.torch, "get_device_module", lambda device: self.driver)
        to = torch.Tensor.to
        monkeypatch.setattr(
            torch.Tensor, "to", lambda self, where, **_: self if where is place else to(self, "cpu")
        )
        world: Any = SimpleNamespace(world_size=2, device=place, backend=backend, any=self._any)
        self.flag = LateFlag(world)

    def _reduce(self, tensor: torch.Tensor, op: object) -> None:
        self.done.append("reduce")
        tensor.fill_(max(int(tensor[0]), self.others.pop(0)))

    def _any(self, flag: bool) -> bool:
        self.done.append("wait")
        return flag or bool(self.others.pop(0))


@pytest.mark.parametrize(("kind", "backend"), KINDS)
def test_it_is_read_in_the_next_call(monkeypatch: pytest.MonkeyPatch, kind: str, backend: str) -> None:
    made = Accelerated(monkeypatch, [0, 1, 0], kind, backend)
    assert [made.flag(False), made.flag(False), made.flag(False)] == [False, False, True]
    assert made.done[:3] == ["reduce", "record", "wait for the copy"]


def test_ones_own_flag_is_late_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Accelerated(monkeypatch, [0, 0])
    assert [made.flag(True), made.flag(True)] == [False, True]


@pytest.mark.parametrize(("kind", "backend"), KINDS)
def test_a_device_without_events_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, kind: str, backend: str
) -> None:
    made = Accelerated(monkeypatch, [1, 0], kind, backend)
    del made.driver.Event
    assert [made.flag(False), made.flag(True)] == [True, True]
    assert made.done == ["wait", "wait"]


@pytest.mark.parametrize("kind", ["cpu", "cuda", "npu", "mps"])
def test_over_gloo_it_is_read_at_once(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    made = Accelerated(monkeypatch, [1], kind, "gloo")
    assert made.flag(False)
    assert made.done == ["wait"]


def test_alone_and_on_a_cpu_it_is_read_at_once() -> None:
    flag = LateFlag(World.single())
    assert [flag(True), flag(False)] == [True, False]
