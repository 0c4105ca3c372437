"""State of sharded parameters: each rank saves and loads its own shards, under plain names, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as TensorShard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from paceline.plan.mesh import Mesh
from paceline.protocols.shard import BUFFER, PARAM, Shard, ShardReader
from paceline.strategies import replicated_state
from paceline.strategies.fsdp.wrapping import Units
from paceline.strategies.model_handle import Handle
from paceline.strategies.optimizers import quantized_state, schedule_free

_CUTS = (TensorShard, _StridedShard)  # plain, or strided as FSDP2's under tensor parallelism


@dataclass(frozen=True)
class Block:
    """This rank's shard of one parameter.

    parameter     as FSDP2 holds it between steps (a DTensor)
    local         the same memory as a plain parameter, for norm, clipping and optimizer (elementwise, so a
                  shard is enough)
    offsets       start of the shard in the whole tensor
    copies        how many ranks (of a pipeline stage) hold this shard; ``copy`` is this rank's index among
                  them
    """

    name: str
    parameter: nn.Parameter
    local: nn.Parameter
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    copies: int
    copy: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.local.shape)

    @property
    def cuts_matrices(self) -> bool:
        """Whether the last two dims are cut over ranks; the same on every rank, also on one whose shard is
        empty.
        """
        tensor: Tensor = self.parameter
        if not isinstance(tensor, DTensor):
            return False
        sizes = tensor.device_mesh.shape
        return any(
            size > 1 and isinstance(p, _CUTS) and p.dim >= tensor.ndim - 2
            for p, size in zip(tensor.placements, sizes, strict=True)
        )

    def gathered(self, shard: Tensor) -> Tensor:
        """Return the whole tensor from every rank's shard of it. Collective."""
        tensor: Tensor = self.parameter
        if not isinstance(tensor, DTensor):
            return shard
        with torch.no_grad():
            # With shape and stride, for without them torch takes all shards for equally large.
            cut = DTensor.from_local(
                shard,
                tensor.device_mesh,
                tensor.placements,
                run_check=False,
                shape=tensor.shape,
                stride=tensor.stride(),
            )
            return cut.full_tensor()

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's shard of a whole tensor."""
        return whole[tuple(slice(o, o + n) for o, n in zip(self.offsets, self.shape, strict=True))]


@dataclass
class ShardedHandle(Handle):
    """A handle whose parameters are shards."""

    blocks: list[Block] = field(default_factory=list)
    units: Units | None = None  # FSDP modules; None if nothing is sharded

    @property
    def shards(self) -> list[Block]:
        """Every shard that is stepped here."""
        return self.blocks

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Return every shard with its parameter's plain name, for the optimizer."""
        return [(b.name, b.local) for b in self.shards]

    def parameters(self) -> list[nn.Parameter]:
        """Return this rank's shards of the trained parameters."""
        return [b.local for b in self.shards if b.local.requires_grad]

    def take_gradients(self) -> None:
        """Assign FSDP2's gradients to the local shards, without copying; unsharded parameters already have
        theirs."""
        for block in self.shards:
            if block.local is not block.parameter:
                grad = block.parameter.grad
                block.local.grad = None if grad is None else local(grad)

    def drop_gradients(self) -> None:
        """Free the gradients."""
        for block in self.shards:
            block.parameter.grad = block.local.grad = None


def blocks_of(named: Iterable[tuple[str, nn.Parameter]], mesh: Mesh, rank: int) -> list[Block]:
    """Return the shards that ``rank`` of the plan's ``mesh`` holds of these parameters."""
    return [_block(name, parameter, mesh, rank) for name, parameter in named]


def _block(name: str, parameter: nn.Parameter, mesh: Mesh, rank: int) -> Block:
    tensor: Tensor = parameter
    assert isinstance(tensor, DTensor), f"{name} is not sharded"
    shape, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    part = nn.Parameter(local(tensor), requires_grad=parameter.requires_grad)
    # An assertion on torch's own arithmetic: a wrong offset here would save the weights in wrong places.
    if tuple(part.shape) != tuple(shape):
        raise AssertionError(f"{name}: a shard of {tuple(part.shape)} where {tuple(shape)} was expected")
    names = tensor.device_mesh.mesh_dim_names or ()
    # A parameter that tp does not cut is held alike by every rank of the tp group.
    split_by_tp = any(
        n == "tp" and isinstance(p, _CUTS) for n, p in zip(names, tensor.placements, strict=True)
    )
    coordinates, keepers = mesh.coordinates(rank), 1 if split_by_tp else mesh.tp
    # This rank's index among those that hold the same shard, replicas first.
    copy = coordinates.dp_replicate * keepers + (0 if split_by_tp else coordinates.tp)
    return Block(
        name, parameter, part, tuple(tensor.shape), tuple(offsets), mesh.dp_replicate * keepers, copy
    )


def local(tensor: Tensor) -> Tensor:
    """Return the local shard of a DTensor, without a copy or a graph; any other tensor as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local().detach()


@torch.no_grad()
def whole(parameters: Sequence[nn.Parameter]) -> AbstractContextManager[list[Tensor]]:
    """Return a context of the whole values of parameters, gathered from their shards. Collective."""
    tensors: list[Tensor] = [parameter.detach() for parameter in parameters]
    return nullcontext([t.full_tensor() if isinstance(t, DTensor) else t for t in tensors])


def export_state(handle: ShardedHandle, rank: int) -> Iterator[Shard]:
    """Yield this rank's shards with their moments; ranks that hold copies of the same shards divide them.
    Tensors are not copied.
    """
    role = handle.role.value
    for index, block in enumerate(handle.blocks):
        # Ranks with copies of the same blocks save every n-th one each.
        # Round robin over the blocks: the copies share the writing, and each block is written once.
        if index % block.copies != block.copy:
            continue
        optimizer = handle.optimizer
        kinds = (
            {} if optimizer is None else replicated_state.saved_moments(optimizer, block.local, block.offsets)
        )
        for kind, tensor in {PARAM: replicated_state.weights_of(optimizer, block.local), **kinds}.items():
            # Elementwise state is sharded like its parameter; anything else belongs to the whole parameter.
            if quantized_state.is_of_shard(kind):
                yield Shard(role, block.name, kind, tuple(tensor.shape), (0,) * tensor.ndim, tensor)
            elif tensor.shape == block.local.shape:
                if tensor.numel():
                    yield Shard(role, block.name, kind, block.global_shape, block.offsets, tensor)
            # a value of the whole parameter: saved by the rank with its first shard
            elif not any(block.offsets):
                yield Shard(role, block.name, kind, tuple(tensor.shape), (0,) * tensor.ndim, tensor)
    if rank == 0:
        for name, kinds in replicated_state.beside_parameters(handle).items():
            for kind, tensor in kinds.items():
                yield Shard(role, name, kind, tuple(tensor.shape), (0,) * tensor.ndim, tensor.detach())


def import_state(handle: ShardedHandle, reader: ShardReader) -> None:
    """Load this rank's shards, whatever sharding they were saved under.

    Raises CheckpointError if a tensor is missing or has another shape. A checkpoint without moments leaves
    the optimizer unchanged.
    """
    role = handle.role.value
    with torch.no_grad():
        for block in handle.blocks:
            replicated_state.check(reader, role, block.name, PARAM, block.global_shape)
            # A dim smaller than the group leaves some ranks with empty shards.
            if block.local.numel():
                block.local.copy_(reader.read_block(role, block.name, PARAM, block.offsets, block.shape))
                schedule_free.read_trained(
                    handle.optimizer, reader, role, block.name, block.offsets, block.local
                )
            if handle.optimizer is not None and block.local.requires_grad:
                import_moments(handle.optimizer, block, reader, role)
    replicated_state.import_beside_parameters(handle, reader)
    handle.root.refresh_compute_weights()


def import_moments(optimizer: torch.optim.Optimizer, block: Block, reader: ShardReader, role: str) -> None:
    if replicated_state.import_quantised(optimizer, block.local, block.offsets, reader, role, block.name):
        return

    def read(kind: str) -> Tensor:
        if reader.shape(role, block.name, kind) != block.global_shape:
            # A counter or another value of the whole parameter, which is not cut.
            return reader.read(role, block.name, kind)
        if not block.local.numel():
            return torch.empty(block.shape, dtype=block.local.dtype)
        return reader.read_block(role, block.name, kind, block.offsets, block.shape)

    kinds = [k for k in reader.kinds(role, block.name) if k not in (PARAM, BUFFER, schedule_free.Y)]
    if kinds:
        optimizer.state[block.local] = replicated_state.moments_from(
            optimizer, block.local, {kind: read(kind) for kind in kinds}
        )
