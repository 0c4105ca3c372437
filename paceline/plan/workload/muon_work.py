"""What Muon adds to an optimizer step: whole matrices are gathered and orthogonalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.plan.plan_sections import OptimizerSpec
from paceline.plan.workload.local_tensors import Piece
from paceline.plan.workload.state_bytes import by_muon

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


def orthogonal(pieces: Sequence[Piece], optimizer: OptimizerSpec) -> Orthogonal | None:
    """Return what the optimizer orthogonalises of ``pieces``; None without any."""
    own = [p for p in pieces if p.trained and by_muon(p, optimizer)]
    if not own:
        return None
    steps = optimizer.args.get("ns_steps", STEPS)
    assert isinstance(steps, int)
    flat = [p for p in own if len(p.shape) == 2]
    return Orthogonal(
        len(flat),
        float(sum(p.numel for p in flat)),
        sum(_flops(p, steps) for p in flat),
        sum(_flops(p, steps) for p in own if len(p.shape) > 2),
        2 if optimizer.args.get("ns_dtype", "bfloat16") == "bfloat16" else 4,
    )


def _flops(piece: Piece, steps: int) -> float:
    """Return the FLOPs of the iterations on a matrix, or on each of a stack: with m rows, n columns and m at
    most n, an iteration multiplies x xᵀ, the gram matrix by itself, and the sum by x.
    """
    *stack, rows, columns = piece.shape
    m, n = sorted((rows, columns))
    count = 1
    for size in stack:
        count *= size
    return float(count * steps * (4 * m * m * n + 2 * m**3))
