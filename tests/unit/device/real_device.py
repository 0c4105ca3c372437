"""This machine's own card in the place of the emulated one, so that the same tests run on it: with
``PACELINE_DEVICE_TESTS=card`` (``make gpu-check``) the tests marked ``card`` train there.

Inside a micro-batch a wait of the host raises (``torch.cuda.set_sync_debug_mode("error")``); elsewhere torch
warns of it, and the warnings are counted.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import pytest
import torch

from paceline.plan.hardware.device_kinds import CUDA
from paceline.strategies.window.runner import WindowRunner

VARIABLE, ON_CARD = "PACELINE_DEVICE_TESTS", "card"
#: the capability whose cases stand for the card, whatever its own is
STANDS_FOR_CARD = (9, 0)
#: another card's kernels sum in another order than the CPU's: absolute, of losses of about 5
CARD_CLOSE = {"no": 1e-4, "bf16": 5e-3, "fp16": 5e-3}
_SYNCHRONIZING = "synchronizing CUDA operation"


def on_card() -> bool:
    """Whether tests run on a real card instead of an emulated one."""
    return os.environ.get(VARIABLE) == ON_CARD


def close(emulated: float, precision: str) -> float:
    """How near a device's losses have to be to the CPU's."""
    return CARD_CLOSE[precision] if on_card() else emulated


def card_capability(where: str, precision: str, capability: tuple[int, int]) -> tuple[int, int]:
    """The card's own capability for a case that runs on it; skips what it cannot run, and repetitions."""
    if where not in ("cpu", CUDA.name) or capability != STANDS_FOR_CARD:
        pytest.skip("one case a precision runs on a real card")
    own: tuple[int, int] = torch.cuda.get_device_capability()
    if precision == "bf16" and own < (8, 0):
        pytest.skip("this card has no bf16")
    return own


@dataclass
class Card:
    """What tests read of an emulated machine, as far as a real card tells it: waits by warnings, bytes by
    torch's allocator.
    """

    kind: str = CUDA.name
    no_triton: str = ""
    kernels: Counter[str] = field(default_factory=Counter)
    pageable: Counter[str] = field(default_factory=Counter)
    heard: list[warnings.WarningMessage] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        return torch.device(self.kind, 0)

    @property
    def waits(self) -> Counter[str]:
        found = [one for one in self.heard if _SYNCHRONIZING in str(one.message)]
        return Counter(f"{one.filename}:{one.lineno}" for one in found)

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()

    def forget(self) -> None:
        self.heard.clear()
        torch.cuda.reset_peak_memory_stats()

    def refuse_waits(self, refuse: bool) -> None:
        """Whether a wait raises; else torch warns."""
        torch.cuda.set_sync_debug_mode("error" if refuse else "warn")


@contextlib.contextmanager
def card() -> Iterator[Card]:
    """This machine's first GPU, with torch's warnings of waits."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = Card(heard=heard)
        found.refuse_waits(False)
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def micro_batches_refuse_waits(machine: object) -> Iterator[None]:
    """Inside, a wait of the host between a window's first forward and its last backward raises."""
    accumulate = WindowRunner._accumulate
    refuse = machine.refuse_waits  # type: ignore[attr-defined]

    def strict(runner: WindowRunner, *given: object) -> None:
        refuse(True)
        try:
            accumulate(runner, *given)  # type: ignore[arg-type]
        finally:
            refuse(False)

    with mock.patch.object(WindowRunner, "_accumulate", strict):
        yield
