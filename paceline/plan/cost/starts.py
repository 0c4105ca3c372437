"""What a start holds before every rank has its share: where the whole model lies, in the masters' dtype, and in how many processes.

Each strategy says it of itself (``StrategySpec.start``, and ``StrategyLayout.start`` of the search). Read from ``models.factory`` (a model is built or loaded whole,
cast to the masters' dtype and moved to the device that the strategy names), ``FSDP.built``, ``Pipeline.built`` and ``DeepSpeed.prepare``;
``docs/planner.md`` has what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Bytes of a process before any model, not shared with others: an interpreter with torch and Transformers (measured: 262 MiB).
INTERPRETER = 256 * 2**20


@dataclass(frozen=True)
class LoadingSpec:
    """``on_card``: every process moves the whole model to its card before it is cut, packed or cast. ``one_reads``: only rank 0 holds it in
    host memory, the others never do; else every process does. ``words`` say it."""

    on_card: bool
    one_reads: bool
    words: str

    def readers(self, processes: int) -> int:
        """How many of a node's ``processes`` hold a whole model in its memory, on the node that has most."""
        return 1 if self.one_reads else processes


CARD = LoadingSpec(
    True, False, "every process reads the whole model and moves it to its card before anything is cut, cast or packed"
)
HOST = LoadingSpec(False, False, "every process reads the whole model into host memory and keeps its part")
FIRST = LoadingSpec(False, True, "rank 0 reads the whole model into host memory and hands each rank its share")


@dataclass(frozen=True)
class ModelBytes:
    """One model of a job: bytes of the whole, and what a rank keeps of it on its card and in host memory once it is made."""

    whole: float
    card: float
    host: float


def card_peak(start: LoadingSpec, roles: Sequence[ModelBytes]) -> float:
    """Bytes of a card while the models are made one after the other, at the fullest moment of it (0 where they never lie there whole)."""
    if not start.on_card:
        return 0.0
    kept, peak = 0.0, 0.0
    for role in roles:
        peak = max(peak, kept + role.whole)
        kept += role.card
    return peak


def host_peak(start: LoadingSpec, roles: Sequence[ModelBytes], processes: int) -> float:
    """Bytes of a node's memory while the models are made: what is read whole at a time beside what is kept there, and the interpreters."""
    kept, peak = 0.0, 0.0
    for role in roles:
        beside = processes * role.host if start.one_reads else 0.0  # shares are made while the whole is still there
        peak = max(peak, kept + start.readers(processes) * role.whole + beside)
        kept += processes * role.host
    return peak + processes * INTERPRETER
