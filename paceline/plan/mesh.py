"""The division of a job over ranks: the mesh of named axes, and the split of the global batch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from paceline.config.sections.training_scale import Parallelism
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan import codes

PARALLELISM = "training.parallelism"
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@dataclass(frozen=True)
class Coordinates:
    """A rank's coordinate on each axis."""

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int


@dataclass(frozen=True)
class Mesh:
    """``pp × dp_replicate × dp_shard × cp × tp``, first axis outermost: a tp group has consecutive ranks."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def size(self) -> int:
        """Product of all axes."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def data_parallel_size(self) -> int:
        """Number of data-parallel ranks, which see different rows."""
        return self.dp_replicate * self.dp_shard

    @property
    def model_copies(self) -> int:
        """Number of ranks that see the same rows: the size of a pp × cp × tp block."""
        return self.pp * self.cp * self.tp

    def coordinates(self, rank: int) -> Coordinates:
        """Return the coordinates of ``rank``; the last axis varies fastest."""
        places = {}
        for axis in reversed(AXES):
            rank, places[axis] = divmod(rank, getattr(self, axis))
        return Coordinates(**places)

    def data_parallel_rank(self, rank: int) -> int:
        """Return the data-parallel rank of ``rank``."""
        coordinates = self.coordinates(rank)
        return coordinates.dp_replicate * self.dp_shard + coordinates.dp_shard

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    def __str__(self) -> str:
        used = [f"{axis} {getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return " × ".join(used) or "one process"


def mesh_for(parallelism: Parallelism, world_size: int) -> Mesh:
    """Return a replicated strategy's mesh: ``training.parallelism``, or all processes on ``dp_replicate``.

    The config rules refuse sizes whose product is not ``world_size``.
    """
    sizes = {axis: parallelism.size(axis) for axis in AXES}
    return Mesh(**sizes) if any(size > 1 for size in sizes.values()) else Mesh(dp_replicate=world_size)


def divisors(number: int) -> list[int]:
    """Return all divisors in ascending order."""
    return [d for d in range(1, number + 1) if number % d == 0]


def tp_heads(heads: int, size: int, where: str = "", found: str = "") -> Diagnostic | None:
    """Return the refusal of a tensor-parallel size that does not divide the attention heads."""
    return codes.PAR_TP_HEADS(where, found, heads=heads, size=size) if heads % size else None


def cp_heads(heads: int, size: int, hint: str, where: str = "", found: str = "") -> Diagnostic | None:
    """Return the refusal of a Ulysses size that does not divide the heads of a rank."""
    return codes.PAR_CP_HEADS(where, found, heads=heads, size=size, hint=hint) if heads % size else None


def tp_inside_node(
    per_node: int, size: int, remedy: str, where: str = "", found: str = ""
) -> Diagnostic | None:
    """Return the refusal of tensor-parallel groups that span nodes; ``{}`` in ``remedy``: one that fits."""
    hint = remedy.format(math.gcd(per_node, size))
    return (
        codes.PAR_TP_NODE(where, found, per_node=per_node, size=size, hint=hint) if per_node % size else None
    )


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
        shown = ", ".join(map(str, legal[:12])) + (", …" if len(legal) > 12 else "")
        below = max(d for d in legal if d <= data_parallel_size)
        above = [d for d in legal if d > data_parallel_size][:1]
        raise ConfigError(
            codes.PLAN_BATCH_WORLD(
                "training.per_device_train_batch_size × gradient_accumulation_steps × ranks",
                str(data_parallel_size),
                global_batch=global_batch,
                data_parallel_size=data_parallel_size,
                hint=f"start {' or '.join(map(str, [below, *above]))} processes (legal: {shown})",
            )
        )
    micro, accumulation = max((pair for pair in pairs if pair[0] <= prefer_micro), default=pairs[0])
    return BatchSplit(micro, accumulation, data_parallel_size, global_batch)
