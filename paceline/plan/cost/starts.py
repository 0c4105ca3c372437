"""Memory at startup: where the whole model is held, in the masters' dtype, and by how many processes.

Each strategy declares its own startup (``StrategySpec.start``, and ``StrategyLayout.start`` for the search).
Read from ``models.factory`` (a model is built or loaded whole, cast to the masters' dtype and moved to the
strategy's device), ``FSDP.built``, ``Pipeline.built`` and ``DeepSpeed.prepare``; ``docs/planner.md`` has
measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Private bytes of an interpreter with torch and Transformers before any model (measured: 262 MiB).
INTERPRETER = 256 * 2**20


@dataclass(frozen=True)
class LoadingSpec:
    """Where the whole model is held at startup; ``words`` describes it for messages.

    ``on_card``: every process moves the whole model to its card before it is sharded, quantized or cast.
    ``one_reads``: only rank 0 holds it in host memory; otherwise every process does.
    """

    on_card: bool
    one_reads: bool
    words: str

    def readers(self, processes: int) -> int:
        """Return how many of a node's ``processes`` hold a whole model in host memory."""
        return 1 if self.one_reads else processes


CARD = LoadingSpec(
    True,
    False,
    "every process reads the complete model and moves it to its device before it is sharded, cast"
    " or quantised",
)
HOST = LoadingSpec(False, False, "every process reads the complete model into host memory and keeps its part")
FIRST = LoadingSpec(
    False, True, "rank 0 reads the complete model into host memory and sends each rank its shard"
)


@dataclass(frozen=True)
class ModelBytes:
    """One model of a job: bytes of the whole model, and of a rank's part on its card and in host memory."""

    whole: float
    card: float
    host: float


def card_peak(start: LoadingSpec, roles: Sequence[ModelBytes]) -> float:
    """Return a card's peak bytes while the models are built one by one; 0 if they are never whole there."""
    if not start.on_card:
        return 0.0
    kept, peak = 0.0, 0.0
    for role in roles:
        peak = max(peak, kept + role.whole)
        kept += role.card
    return peak


def host_peak(start: LoadingSpec, roles: Sequence[ModelBytes], processes: int) -> float:
    """Return a node's peak host memory while the models are built, including the interpreters."""
    kept, peak = 0.0, 0.0
    for role in roles:
        # shards are created while the whole model is still held
        beside = processes * role.host if start.one_reads else 0.0
        peak = max(peak, kept + start.readers(processes) * role.whole + beside)
        kept += processes * role.host
    return peak + processes * INTERPRETER
