"""Bytes of a rank's model states for whole tensors and for tensors sharded along dim 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from paceline.config.optimizers import BUILT
from paceline.plan.cost.pieces import Piece
from paceline.plan.parts import ModelStates, OptimizerSpec
from paceline.plan.plan import Plan

SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def sum_of(states: Sequence[ModelStates]) -> ModelStates:
    """Return the sum over several models."""
    return ModelStates(*(sum(getattr(s, f.name) for s in states) for f in fields(ModelStates)))


def whole_states(plan: Plan, pieces: Sequence[Piece]) -> ModelStates:
    """Return the states of whole copies (single, ddp, data_parallel, ZeRO-0, stages that are not sharded)."""
    copies = plan.memory is not None and plan.memory.copies
    trained = [p for p in pieces if p.trained]
    return ModelStates(
        parameters=sum(p.numel * _size(p, copies) for p in pieces),
        gradients=sum(p.numel * p.size for p in trained),
        optimizer=sum(p.size * moments(p.shape, plan.optimizer) for p in trained),
        counters=counter_bytes(plan.optimizer) * len(trained),
    )


def _size(piece: Piece, copies: bool) -> int:
    """Return bytes per element: a trained weight and its copy; only the copy of a frozen weight."""
    if not copies or not piece.has_copy:
        return piece.size
    return piece.size + 2 if piece.trained else 2


def sharded_states(plan: Plan, pieces: Sequence[Piece], rank: int) -> ModelStates:
    """Return the states under FSDP2, which chunks dim 0 evenly and pads the last chunks.

    Weights and gradients are stored padded, moments are not.
    """
    ranks, index = shard_of(plan, rank)
    trained = [p for p in pieces if p.trained]
    kept = {id(p): _rows(p.shape[0], ranks, index) for p in pieces}
    return ModelStates(
        parameters=sum(p.size * _padded(p.shape, ranks) for p in pieces),
        gradients=sum(p.size * _padded(p.shape, ranks) for p in trained),
        optimizer=sum(p.size * moments((kept[id(p)], *p.shape[1:]), plan.optimizer) for p in trained),
        counters=counter_bytes(plan.optimizer) * len(trained),
    )


def shard_of(plan: Plan, rank: int) -> tuple[int, int]:
    """Return (number of ranks that share one copy of the weights, index of ``rank`` among them).

    The ranks of a cp group shard together.
    """
    at = plan.mesh.coordinates(rank)
    return plan.mesh.dp_shard * plan.mesh.cp, at.dp_shard * plan.mesh.cp + at.cp


def _rows(rows: int, ranks: int, index: int) -> int:
    """Return the rows of the ``index``-th chunk, as ``torch.chunk`` splits them."""
    each = -(-rows // ranks)
    return max(0, min(each, rows - each * index))


def _padded(shape: tuple[int, ...], ranks: int) -> int:
    each = -(-shape[0] // ranks)
    count = each
    for size in shape[1:]:
        count *= size
    return count


def moments(shape: tuple[int, ...], optimizer: OptimizerSpec) -> int:
    """Return the number of optimizer state elements for a tensor of ``shape``, from the optimizers' table."""
    return BUILT[optimizer.name].kept(shape, optimizer.args)


def counter_bytes(optimizer: OptimizerSpec) -> int:
    """Return the bytes of a tensor's step counter (a float32 scalar)."""
    return 4 if BUILT[optimizer.name].counts else 0
