"""Collectives inside a model, each with its matching backward.

A tensor is *replicated* (equal on all ranks), *partial* (the ranks' tensors are to be summed) or *sharded*
along a dim. Forward and backward collectives come in pairs: the gradient of a replicated tensor that each
rank used for its own part is partial. After Shoeybi et al. 2019 (Megatron-LM, f and g), Korthikanti et al.
2022 (sequence parallelism) and Jacobs et al. 2023 (DeepSpeed Ulysses).
"""

from __future__ import annotations

from typing import overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from paceline.models.typed_autograd import Function, FunctionContext

Group = dist.ProcessGroup
TP_AXIS = "tp"


@overload
def local(parameter: Tensor) -> Tensor: ...


@overload
def local(parameter: None) -> None: ...


@overload
def local(parameter: Tensor | None) -> Tensor | None: ...


def local(parameter: Tensor | None) -> Tensor | None:
    """Return this rank's shard of a parameter sharded over a tp group, as a plain tensor; a plain tensor is
    returned as it is.

    Raises RuntimeError for a parameter that is still sharded along another axis (not gathered by the engine),
    so that a shard is never taken for the whole.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    if parameter.device_mesh.mesh_dim_names != (TP_AXIS,):
        raise RuntimeError(
            f"a parameter of {tuple(parameter.shape)} was read while it is sharded over"
            f" {parameter.device_mesh.mesh_dim_names}"
        )
    return parameter.to_local()


def all_reduced(x: Tensor, group: Group) -> Tensor:
    """Return the sum over the group, as a new tensor. Collective."""
    # ``all_reduce`` writes in place, and autograd may still need the input.
    out = x.detach().contiguous().clone()
    dist.all_reduce(out, group=group)
    return out


def gathered(x: Tensor, group: Group, dim: int) -> Tensor:
    """Return all ranks' blocks concatenated along ``dim``, in rank order. Collective."""
    # ``all_gather_single`` joins along dim 0.
    block = x.detach().movedim(dim, 0).contiguous()
    out = block.new_empty(group.size() * block.shape[0], *block.shape[1:])
    dist.all_gather_single(out, block, group=group)
    return out.movedim(0, dim).contiguous()  # attention kernels assume a stride of 1 in the last dim


def reduce_scattered(x: Tensor, group: Group, dim: int) -> Tensor:
    """Return this rank's block along ``dim`` of the sum over the group. Collective."""
    full = x.detach().movedim(dim, 0).contiguous()
    out = full.new_empty(full.shape[0] // group.size(), *full.shape[1:])
    dist.reduce_scatter_single(out, full, group=group)
    return out.movedim(0, dim).contiguous()


def block_of(x: Tensor, group: Group, dim: int) -> Tensor:
    """Return this rank's block along ``dim``, a view. Raises ValueError if the group does not divide its
    length.
    """
    size, left = divmod(x.shape[dim], group.size())
    if left:
        raise ValueError(f"{x.shape[dim]} along dim {dim} cannot be split into {group.size()} equal blocks")
    return x.narrow(dim, group.rank() * size, size)


def all_to_all(x: Tensor, group: Group, split: int, join: int) -> Tensor:
    """All-to-all: split along ``split``, block j is sent to rank j; received blocks are concatenated along
    ``join``, in rank order. Collective.
    """
    # [ranks, …]: one contiguous block for each receiver.
    parts = torch.stack(x.detach().chunk(group.size(), dim=split))
    out = torch.empty_like(parts)
    dist.all_to_all_single(out, parts, group=group)
    return torch.cat(out.unbind(0), dim=join)


class _OverGroup(FunctionContext):
    group: Group


class _AlongDim(_OverGroup):
    dim: int


class _PartialOrNot(_AlongDim):
    partial: bool


class _Exchanged(_OverGroup):
    split: int
    join: int


class CopyToTP(Function):
    """Megatron's f. Replicated, before a part of the model of which each rank computes its own share:
    identity; the partial gradients are summed.
    """

    @staticmethod
    def forward(ctx: _OverGroup, x: Tensor, group: Group) -> Tensor:
        """Return the same tensor."""
        ctx.group = group
        # A view, since autograd forbids a function to return its input itself.
        return x.view_as(x)

    @staticmethod
    def backward(ctx: _OverGroup, grad: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the gradients over the group."""
        return all_reduced(grad, ctx.group), None


class ReduceFromTP(Function):
    """Megatron's g. Partial to replicated: the sum over the group; the gradient, equal on all ranks, passes
    unchanged.
    """

    @staticmethod
    def forward(ctx: _OverGroup, x: Tensor, group: Group) -> Tensor:
        """Return the sum over the group."""
        return all_reduced(x, group)

    @staticmethod
    def backward(ctx: _OverGroup, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient unchanged."""
        return grad, None


class Gather(Function):
    """Sharded along ``dim`` to replicated.

    ``partial``: each rank uses the whole for its own part only, so gradients are summed; else they are equal,
    and each rank takes its block.
    """

    @staticmethod
    def forward(ctx: _PartialOrNot, x: Tensor, group: Group, dim: int, partial: bool) -> Tensor:
        """Return all blocks."""
        ctx.group, ctx.dim, ctx.partial = group, dim, partial
        return gathered(x, group, dim)

    @staticmethod
    def backward(ctx: _PartialOrNot, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Return this rank's block."""
        take = reduce_scattered if ctx.partial else block_of
        return take(grad, ctx.group, ctx.dim), None, None, None


class ScatterToTP(Function):
    """Replicated to sharded along ``dim``; the backward gathers the gradients of the blocks."""

    @staticmethod
    def forward(ctx: _AlongDim, x: Tensor, group: Group, dim: int) -> Tensor:
        """Return this rank's block."""
        ctx.group, ctx.dim = group, dim
        return block_of(x, group, dim).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: _AlongDim, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return all blocks."""
        return gathered(grad, ctx.group, ctx.dim), None, None


class ReduceScatter(Function):
    """Partial to sharded along ``dim``; the backward gathers the gradients of the blocks."""

    @staticmethod
    def forward(ctx: _AlongDim, x: Tensor, group: Group, dim: int) -> Tensor:
        """Return this rank's block of the sum."""
        ctx.group, ctx.dim = group, dim
        return reduce_scattered(x, group, dim)

    @staticmethod
    def backward(ctx: _AlongDim, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return all blocks."""
        return gathered(grad, ctx.group, ctx.dim), None, None


class AllToAll(Function):
    """Sharded along ``join`` to sharded along ``split``, by all-to-all; the backward is the reverse."""

    @staticmethod
    def forward(ctx: _Exchanged, x: Tensor, group: Group, split: int, join: int) -> Tensor:
        """Return the same tensor sharded along ``split``."""
        ctx.group, ctx.split, ctx.join = group, split, join
        return all_to_all(x, group, split, join)

    @staticmethod
    def backward(ctx: _Exchanged, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient sharded along ``join``."""
        return all_to_all(grad, ctx.group, ctx.join, ctx.split), None, None, None


# The same as functions with named arguments.
def copy_to_tp(x: Tensor, group: Group) -> Tensor:
    """See ``CopyToTP``."""
    return CopyToTP.apply(x, group)


def reduce_from_tp(x: Tensor, group: Group) -> Tensor:
    """See ``ReduceFromTP``."""
    return ReduceFromTP.apply(x, group)


def gather(x: Tensor, group: Group, dim: int, *, partial: bool) -> Tensor:
    """See ``Gather``."""
    return Gather.apply(x, group, dim, partial)


def split(x: Tensor, group: Group, dim: int) -> Tensor:
    """See ``ScatterToTP``."""
    return ScatterToTP.apply(x, group, dim)


def exchange(x: Tensor, group: Group, *, split: int, join: int) -> Tensor:
    """See ``AllToAll``."""
    return AllToAll.apply(x, group, split, join)
