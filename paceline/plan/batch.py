"""Split the global batch: micro-batch × gradient accumulation × data-parallel size."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.plan import codes
from paceline.plan.mesh import divisors


@dataclass(frozen=True)
class BatchSplit:
    """``global_batch`` rows per step = ``micro_batch`` × ``accumulation`` × ``data_parallel_size``."""

    micro_batch: int
    accumulation: int
    data_parallel_size: int
    global_batch: int

    def __str__(self) -> str:
        return (
            f"{self.global_batch} rows per step = {self.micro_batch} per micro-batch ×"
            f" {self.accumulation} micro-steps × {self.data_parallel_size} ranks"
        )


def split_batch(micro_batch: int, accumulation: int, data_parallel_size: int) -> BatchSplit:
    """Return the split that the config sets; the config rules refuse numbers below 1."""
    return BatchSplit(
        micro_batch, accumulation, data_parallel_size, micro_batch * accumulation * data_parallel_size
    )


def legal_pairs(global_batch: int, data_parallel_size: int) -> list[tuple[int, int]]:
    """Return all (micro_batch, accumulation) that give ``global_batch``; empty if it does not divide."""
    if global_batch % data_parallel_size:
        return []
    rows = global_batch // data_parallel_size
    return [(micro, rows // micro) for micro in divisors(rows)]


def resplit(global_batch: int, data_parallel_size: int, prefer_micro: int) -> BatchSplit:
    """Split the same global batch over another number of ranks (on resume).

    Takes the largest micro-batch not above ``prefer_micro``. The first run fixes the global batch, so that
    the order of samples and the schedule stay the same. Raises ConfigError, with the nearest possible numbers
    of ranks, if it does not divide.
    """
    pairs = legal_pairs(global_batch, data_parallel_size)
    if not pairs:
        legal = divisors(global_batch)
        below = max(d for d in legal if d <= data_parallel_size)
        above = [d for d in legal if d > data_parallel_size][:1]
        raise ConfigError(
            codes.PLAN_BATCH_WORLD(
                "training.per_device_train_batch_size × gradient_accumulation_steps × ranks",
                str(data_parallel_size),
                global_batch=global_batch,
                data_parallel_size=data_parallel_size,
                hint=f"start {' or '.join(map(str, [below, *above]))} processes (legal: {_shorten(legal)})",
            )
        )
    micro, accumulation = max((pair for pair in pairs if pair[0] <= prefer_micro), default=pairs[0])
    return BatchSplit(micro, accumulation, data_parallel_size, global_batch)


def _shorten(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:12])) + (", …" if len(numbers) > 12 else "")
