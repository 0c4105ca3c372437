"""How the global batch is split into micro-batches: micro × accumulation × data-parallel size."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.plan import codes
from paceline.plan.mesh import divisors


@dataclass(frozen=True)
class BatchSplit:
    """``global_batch`` rows an optimizer step = ``micro_batch`` rows × ``accumulation`` micro-steps × ``data_parallel_size`` ranks."""

    micro_batch: int
    accumulation: int
    data_parallel_size: int
    global_batch: int

    def __str__(self) -> str:
        return f"{self.global_batch} rows a step = {self.micro_batch} a micro-batch × {self.accumulation} micro-steps × {self.data_parallel_size} ranks"


def split_batch(micro_batch: int, accumulation: int, data_parallel_size: int) -> BatchSplit:
    """The split that the config names; numbers below 1 are refused by the config rules."""
    return BatchSplit(micro_batch, accumulation, data_parallel_size, micro_batch * accumulation * data_parallel_size)


def legal_pairs(global_batch: int, data_parallel_size: int) -> list[tuple[int, int]]:
    """All (micro_batch, accumulation) with micro × accumulation × data_parallel_size = global_batch; empty when it does not divide."""
    if global_batch % data_parallel_size:
        return []
    rows = global_batch // data_parallel_size
    return [(micro, rows // micro) for micro in divisors(rows)]


def resplit(global_batch: int, data_parallel_size: int, prefer_micro: int) -> BatchSplit:
    """The same global batch on another number of ranks (resume): the largest legal micro-batch that is not above ``prefer_micro``.

    The global batch is fixed by the first run, so that the order of samples and the schedule stay the same. Raises ConfigError when it
    does not divide, naming the nearest numbers of ranks that do.
    """
    pairs = legal_pairs(global_batch, data_parallel_size)
    if not pairs:
        legal = divisors(global_batch)
        below = max(d for d in legal if d <= data_parallel_size)
        above = [d for d in legal if d > data_parallel_size][:1]
        raise ConfigError(
            codes.PLAN_BATCH_WORLD(
                f"this run takes {global_batch} rows a step, which {data_parallel_size} data-parallel ranks cannot share evenly",
                "training.per_device_train_batch_size × gradient_accumulation_steps × ranks",
                str(data_parallel_size),
                f"start {' or '.join(map(str, [below, *above]))} processes (legal: {_shorten(legal)})",
            )
        )
    micro, accumulation = max((pair for pair in pairs if pair[0] <= prefer_micro), default=pairs[0])
    return BatchSplit(micro, accumulation, data_parallel_size, global_batch)


def _shorten(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:12])) + (", …" if len(numbers) > 12 else "")
