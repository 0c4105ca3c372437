"""Bytes of a rank's states, whole or sharded along dim 0, and what Muon computes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from paceline.config.registries.optimizer_bytes import one
from paceline.config.registries.optimizer_bytes import projected as of_projection
from paceline.config.registries.optimizers import BUILT
from paceline.core.safetensors_header import STORED_DTYPES
from paceline.plan.model.parameter_list import orthogonalised, projected
from paceline.plan.plan import ModelStates, OptimizerSpec, Plan
from paceline.plan.workload.local_tensors import LocalTensor

#: bytes of an element, by torch's name of the dtype
SIZES = {name: bits // 8 for name, bits in STORED_DTYPES.values() if name}


def sum_of(states: Sequence[ModelStates]) -> ModelStates:
    """Return the sum over several models."""
    return ModelStates(*(sum(getattr(s, f.name) for s in states) for f in fields(ModelStates)))


def whole_states(plan: Plan, pieces: Sequence[LocalTensor]) -> ModelStates:
    """Return the states of whole copies (single, ddp, data_parallel, ZeRO-0, stages that are not sharded)."""
    autocast = plan.shape is not None and plan.shape.family.autocast  # then fp32 weights alone stay
    copies = plan.memory is not None and plan.memory.copies and not autocast
    trained = [p for p in pieces if p.trained]
    return ModelStates(
        parameters=sum(p.numel * _size(p, copies) for p in pieces),
        gradients=sum(p.numel * p.size for p in trained),
        optimizer=sum(piece_moments(p, plan.optimizer) for p in trained),
        counters=sum(piece_counters(p, plan.optimizer) for p in trained),
    )


def _size(piece: LocalTensor, copies: bool) -> int:
    """Return bytes per element: a trained weight and its copy; only the copy of a frozen weight."""
    if not copies or not piece.has_copy:
        return piece.size
    return piece.size + 2 if piece.trained else 2


def sharded_states(plan: Plan, pieces: Sequence[LocalTensor], rank: int) -> ModelStates:
    """Return the states under FSDP2, which chunks dim 0 evenly and pads the last chunks.

    Weights and gradients are stored padded, moments are not.
    """
    ranks, index = shard_of(plan, rank)
    trained = [p for p in pieces if p.trained]
    kept = {id(p): _rows(p.shape[0], ranks, index) for p in pieces}
    return ModelStates(
        parameters=sum(p.size * _padded(p.shape, ranks) for p in pieces),
        gradients=sum(p.size * _padded(p.shape, ranks) for p in trained),
        optimizer=sum(
            piece_moments(replace(p, shape=(kept[id(p)], *p.shape[1:])), plan.optimizer) for p in trained
        ),
        counters=sum(piece_counters(p, plan.optimizer) for p in trained),
    )


def shard_of(plan: Plan, rank: int) -> tuple[int, int]:
    """Return (number of ranks that share one copy of the weights, index of ``rank`` among them).

    The ranks of a cp group shard together.
    """
    coordinates = plan.mesh.coordinates(rank)
    return plan.mesh.dp_shard * plan.mesh.cp, coordinates.dp_shard * plan.mesh.cp + coordinates.cp


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


def piece_moments(piece: LocalTensor, optimizer: OptimizerSpec) -> int:
    """Return the bytes of the optimizer's states for ``piece``, from the optimizers' table."""
    if by_muon(piece, optimizer):
        return one(piece.shape, optimizer.args, piece.size)
    if by_projection(piece, optimizer):
        return of_projection(piece.shape, optimizer.args, piece.size)
    return moment_bytes(piece.shape, optimizer, piece.size)


def piece_counters(piece: LocalTensor, optimizer: OptimizerSpec) -> int:
    """Return the bytes of the step counter of ``piece``."""
    return 0 if by_muon(piece, optimizer) else counter_bytes(optimizer)


def group_of(piece: LocalTensor, optimizer: OptimizerSpec) -> int:
    """Return the parameter group of ``piece``, as ``strategies.optimizers.build`` orders them: Muon's or
    GaLore's, with weight decay, without.
    """
    return 0 if (by_muon(piece, optimizer) or by_projection(piece, optimizer)) else 1 if piece.decays else 2


def by_muon(piece: LocalTensor, optimizer: OptimizerSpec) -> bool:
    """Whether the optimizer orthogonalises ``piece``."""
    return BUILT[optimizer.name].orthogonalises and orthogonalised(piece.name, len(piece.shape))


def by_projection(piece: LocalTensor, optimizer: OptimizerSpec) -> bool:
    """Whether the optimizer projects the gradient of ``piece``."""
    return BUILT[optimizer.name].projects and projected(
        piece.name, len(piece.shape), optimizer.target_modules
    )


def moment_bytes(shape: tuple[int, ...], optimizer: OptimizerSpec, size: int) -> int:
    """Return the bytes of the optimizer's states for a tensor of ``shape``, from the optimizers' table.

    ``size``: bytes per element of the master weight.
    """
    return BUILT[optimizer.name].moment_bytes(shape, optimizer.args, size)


def counter_bytes(optimizer: OptimizerSpec) -> int:
    """Return the bytes of a tensor's step counter (a float32 scalar)."""
    return 4 if BUILT[optimizer.name].counts else 0


STEPS = 5  # Newton-Schulz iterations (arXiv:2502.16982)


@dataclass(frozen=True)
class Orthogonal:
    """Muon's matrices. ``matrices``, ``elements``: those of two dims, which sharding cuts; ``flops``: of the
    iterations on all of them; ``stacked``: of those on fused experts, of which a rank has whole ones;
    ``size``: bytes of a gathered element.
    """

    matrices: int
    elements: float
    flops: float
    stacked: float = 0.0
    size: int = 2


def orthogonal(pieces: Sequence[LocalTensor], optimizer: OptimizerSpec) -> Orthogonal | None:
    """Return what the optimizer orthogonalises of ``pieces``; None without any."""
    matrices = [p for p in pieces if p.trained and by_muon(p, optimizer)]
    if not matrices:
        return None
    steps = optimizer.args.get("ns_steps", STEPS)
    assert isinstance(steps, int)
    flat = [p for p in matrices if len(p.shape) == 2]
    return Orthogonal(
        len(flat),
        float(sum(p.numel for p in flat)),
        sum(_flops(p, steps) for p in flat),
        sum(_flops(p, steps) for p in matrices if len(p.shape) > 2),
        2 if optimizer.args.get("ns_dtype", "bfloat16") == "bfloat16" else 4,
    )


def _flops(piece: LocalTensor, steps: int) -> float:
    """Return the FLOPs of the iterations on a matrix, or on each of a stack: with m rows, n columns and m at
    most n, an iteration multiplies x xᵀ, the gram matrix by itself, and the sum by x.
    """
    *stack, rows, columns = piece.shape
    m, n = sorted((rows, columns))
    count = 1
    for size in stack:
        count *= size
    return float(count * steps * (4 * m * m * n + 2 * m**3))
