"""Gradients and parameters over the stages of a pipeline: whole ones, and the weight that two stages
share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.plan.mesh import Mesh
from paceline.strategies.fsdp.state import Block, ShardedHandle, local
from paceline.strategies.pipeline.stage_modules import PipelineRoot

_BUCKET_BYTES = 50 * 2**20  # as DDP's on a CPU: few messages, without a second copy of all gradients


@dataclass
class PipelineHandle(ShardedHandle):
    """``blocks`` are this rank's shards of its stages' parameters, ``copies`` those of the head's copy of a
    tied embedding.

    Copies are trained like the others; for norms and checkpoints they are the embedding's.
    """

    copies: list[Block] = field(default_factory=list)

    @property
    def shards(self) -> list[Block]:
        """Every shard that is stepped here, the copies last."""
        return [*self.blocks, *self.copies]


def whole_blocks(named: Iterable[tuple[str, nn.Parameter]], mesh: Mesh, rank: int) -> list[Block]:
    """Return blocks for parameters that every rank of a stage holds whole."""
    coordinates = mesh.coordinates(rank)
    return [
        Block(name, p, p, tuple(p.shape), (0,) * p.ndim, mesh.dp_replicate, coordinates.dp_replicate)
        for name, p in named
    ]


@torch.no_grad()
def sum_gradients(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """All-reduce gradients over ``group`` in place, in buckets of some tens of MB. Collective."""
    bucket: list[Tensor] = []
    for index, parameter in enumerate(parameters):
        assert parameter.grad is not None
        bucket.append(parameter.grad)
        if index + 1 == len(parameters) or sum(g.nbytes for g in bucket) >= _BUCKET_BYTES:
            # few messages instead of one a parameter
            flat = torch.cat([g.flatten() for g in bucket])
            dist.all_reduce(flat, group=group)
            for grad, summed in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                grad.copy_(summed.view_as(grad))
            bucket = []


@torch.no_grad()
def exchange(handle: PipelineHandle, row: dist.ProcessGroup, first: int, last: int) -> None:
    """Give both holders of a tied weight the sum of both gradients, added in the same order, so that their
    steps are bitwise equal.

    ``first`` and ``last`` are the holders' ranks in the group ``row``. Collective between the two.
    """
    root = handle.root
    assert isinstance(root, PipelineRoot)
    held = [p for p in (root.tied, root.tied_copy) if p is not None and p.requires_grad]
    if not held:
        return
    grads = [local(p.grad) for p in held if p.grad is not None]
    assert len(grads) == len(held), "a tied weight has no gradient"
    # One rank may hold both (zbv); else the two holders swap gradients, and add them in the same order.
    if len(grads) == 2:
        total = grads[0] + grads[1]
    else:
        here = dist.get_rank(row)
        peer = dist.get_global_rank(row, last if here == first else first)
        sent, received = (
            grads[0].contiguous(),
            torch.empty_like(grads[0], memory_format=torch.contiguous_format),
        )
        work = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, peer, row), dist.P2POp(dist.irecv, received, peer, row)]
        )
        for transfer in work:
            transfer.wait()
        total = sent + received if here == first else received + sent
    for grad in grads:
        grad.copy_(total)
