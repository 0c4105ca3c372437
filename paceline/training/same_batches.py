"""Check in the first steps that the ranks of one tp, cp or pp group read the same rows."""

from __future__ import annotations

import hashlib
from typing import Protocol, TypeVar

from paceline.core.errors import PacelineError
from paceline.protocols.window import Window
from paceline.training import codes

T = TypeVar("T")
CHECKED_STEPS = 3  # of every attempt: a wrong order shows from the start


class CheckWorld(Protocol):
    """The part of ``runtime.World`` that the check needs."""

    @property
    def rank(self) -> int: ...

    def all_gather_json(self, value: T) -> list[T]: ...


def rows_digest(window: Window) -> str:
    """Hash what this rank reads in a window: document ids, boundaries, tokens and labels."""
    digest = hashlib.blake2b(digest_size=8)
    for batch in window.micro_batches:
        for tensor in (batch.document_ids, batch.cu_seqlens, batch.input_ids, batch.labels):
            digest.update(tensor.cpu().numpy().tobytes())
        digest.update(b"|")
    return digest.hexdigest()


def check_same_rows(world: CheckWorld, data_parallel_rank: int, window: Window) -> None:
    """Raise PacelineError on every rank if two ranks of equal ``data_parallel_rank`` read different rows.

    Collective.
    """
    everyone = world.all_gather_json((data_parallel_rank, rows_digest(window)))
    first: dict[int, tuple[int, str]] = {}
    for rank, (place, digest) in enumerate(everyone):
        other, expected = first.setdefault(place, (rank, digest))
        if digest != expected:
            raise PacelineError(
                codes.TRAINING_ROWS_DIFFER(
                    f"step {window.step + 1}", f"rank {other}: {expected}, rank {rank}: {digest}"
                )
            )
