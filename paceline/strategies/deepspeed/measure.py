"""Measure a ZeRO engine's model states on this rank in bytes, from its tensors (with padding, without
communication buckets).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.strategies.measure import storage_bytes

if TYPE_CHECKING:
    from paceline.strategies.deepspeed.engine import Engine, FlatOptimizer, PartitionedOptimizer


def parameter_bytes(engine: Engine) -> int:
    """Return the bytes of working parameters (ZeRO-3: this rank's partitions, and the small ones kept whole)
    and fp32 masters; shared memory counts once.
    """
    optimizer = engine.optimizer
    working = [t.data for p in engine.module.parameters() for t in (p, getattr(p, "ds_tensor", p))]
    return storage_bytes([*working, *_masters(optimizer)])


def gradient_bytes(engine: Engine) -> int:
    """Return the bytes of gradients after a window's last backward: whole ones (stage 1), or this rank's
    partitions.
    """
    return storage_bytes(_gradients(engine))


def optimizer_bytes(engine: Engine) -> int:
    """Return the bytes of the optimizer's moments of the masters."""
    states = engine.optimizer.optimizer.state.values()
    return storage_bytes(v for state in states for v in state.values() if isinstance(v, Tensor) and v.ndim)


def _masters(optimizer: FlatOptimizer | PartitionedOptimizer) -> list[Tensor]:
    for name in (
        "fp32_partitioned_groups_flat",
        "single_partition_of_fp32_groups",
        "fp32_groups_flat_partition",
    ):
        if hasattr(optimizer, name):
            return list(getattr(optimizer, name))
    return []


def _gradients(engine: Engine) -> Iterator[Tensor]:
    optimizer = engine.optimizer
    yield from (p.grad for p in engine.module.parameters() if p.grad is not None)
    yield from (master.grad for master in _masters(optimizer) if master.grad is not None)
    if hasattr(optimizer, "grad_partitions_flat_buffer"):
        yield optimizer.grad_partitions_flat_buffer
    for kept in (getattr(optimizer, "averaged_gradients", None) or {}).values():
        yield from (g for g in kept or () if g is not None)
    yield from getattr(optimizer, "fp32_groups_gradients_flat", None) or ()  # BF16_Optimizer's sums
