"""The mesh: named axes whose product is the world size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@dataclass(frozen=True)
class Mesh:
    """``pp × dp_replicate × dp_shard × cp × tp``, the first axis outermost: a tp group is made of consecutive ranks."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def size(self) -> int:
        """The product of all axes."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def data_parallel_size(self) -> int:
        """How many ranks see different rows."""
        return self.dp_replicate * self.dp_shard

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Mesh:
        return Mesh(**data)

    def __str__(self) -> str:
        used = [f"{axis} {getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return " × ".join(used) or "one process"


def mesh_for(parallelism: Mapping[str, int | None], world_size: int, *, sharded: bool) -> Mesh:
    """The mesh for ``training.parallelism`` on ``world_size`` processes.

    Sizes left out are 1, but for one data-parallel axis that takes what is left over: ``dp_shard`` when the strategy shards, else
    ``dp_replicate``. Raises ConfigError when the product cannot be ``world_size``.
    """
    given = {axis: parallelism.get(f"{axis}_size") for axis in AXES}
    for axis, size in given.items():
        if size is not None and size < 1:
            raise ConfigError(
                Diagnostic("plan.mesh_size", "a parallel size is a number from 1 up", f"training.parallelism.{axis}_size", str(size), "1 or more")
            )
    sizes = {axis: size or 1 for axis, size in given.items()}
    product = _product(sizes)
    free = "dp_shard" if sharded else "dp_replicate"
    # A size that was not written, or written as its default 1, is free to take the rest.
    if product != world_size and sizes[free] == 1 and world_size % product == 0:
        sizes[free] = world_size // product
        product = world_size
    if product != world_size:
        written = " × ".join(f"{axis}_size {size}" for axis, size in sizes.items() if size > 1) or "all sizes 1"
        raise ConfigError(
            Diagnostic(
                "plan.mesh_product",
                f"the parallel sizes multiply to {product}, but {world_size} processes are started",
                "training.parallelism",
                written,
                f"sizes whose product is {world_size} (divisors: {', '.join(map(str, divisors(world_size)))}), or start {product} processes",
            )
        )
    return Mesh(**sizes)


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


def _product(sizes: Mapping[str, int]) -> int:
    product = 1
    for size in sizes.values():
        product *= size
    return product
