"""Forwards of a model whose parameters are shared out over a tp group: plain tensors inside, ``regions`` where ranks meet.

Each wraps the forward that a module has (its class, names and parameters stay) and computes with this rank's blocks. With sequence
parallelism the residual stream between blocks is cut along the tokens; a forward outside of a packed micro-batch (generation: one token
at a time) is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.models.attention_context import sequence_info_of
from paceline.models.regions import Group, copy_to_tp, gather, local, reduce_from_tp, reduce_scatter, split

_TOKENS, _FEATURES = 1, -1  # dims of [1, T, H]
Forward = Callable[..., Any]


@dataclass(frozen=True)
class Tensors:
    """The tp group of one model, and whether its residual stream is cut along the tokens."""

    group: Group
    sequence_parallel: bool

    def is_sharded(self, module: nn.Module) -> bool:
        """Whether the running forward has its tokens shared out."""
        return self.sequence_parallel and sequence_info_of(module) is not None


@contextmanager
def local_parameters(
    module: nn.Module, group: Group, *, partial: bool = False, hide: str | None = None
) -> Iterator[None]:
    """Inside, ``module``'s own parameters are this rank's blocks; ``partial``: their gradients are summed over the group. ``hide`` one of them."""
    kept = dict(module._parameters)
    try:
        for name, parameter in kept.items():
            if parameter is not None:
                block = local(parameter)
                blocks: dict[str, Any] = module._parameters
                blocks[name] = None if name == hide else copy_to_tp(block, group) if partial else block
        yield
    finally:
        module._parameters.update(kept)


def whole(module: nn.Module, tensors: Tensors, *, partial: bool, inside_cut: bool) -> Forward:
    """Replicated parameters. ``partial``: each rank applies them to its own heads; ``inside_cut``: to its own tokens, where these are cut."""
    forward = _own(module)

    def run(*args: Any, **kwargs: Any) -> Any:
        summed = partial or (inside_cut and tensors.is_sharded(module))
        with local_parameters(module, tensors.group, partial=summed):
            return forward(*args, **kwargs)

    return run


def colwise(module: nn.Module, tensors: Tensors, *, gathers: bool) -> Forward:
    """Rows of the weight: replicated input, this rank's output features. ``gathers``: all features, and gradients come in whole."""
    forward = _own(module)

    def run(x: Tensor) -> Tensor:
        x = (
            copy_to_tp(x, tensors.group) if gathers else x
        )  # else the block's entrance did it once for all its projections
        with local_parameters(module, tensors.group):
            out: Tensor = forward(x)
        return gather(out, tensors.group, _FEATURES, partial=False) if gathers else out

    return run


def rowwise(module: nn.Module, tensors: Tensors, *, splits: bool) -> Forward:
    """Columns of the weight: this rank's input features, summed output; the bias is added once. ``splits``: the input comes whole."""
    forward = _own(module)

    def run(x: Tensor) -> Tensor:
        x = split(x, tensors.group, _FEATURES) if splits else x
        with local_parameters(module, tensors.group, hide="bias"):
            out: Tensor = forward(x)
        cut = not splits and tensors.is_sharded(module)
        out = reduce_scatter(out, tensors.group, _TOKENS) if cut else reduce_from_tp(out, tensors.group)
        bias = local(module._parameters.get("bias"))
        if bias is None:
            return out
        return out + (copy_to_tp(bias, tensors.group) if cut else bias).to(out.dtype)

    return run


def sharded_block(module: nn.Module, tensors: Tensors) -> Forward:
    """An attention or MLP whose colwise children keep their features: its input enters the group once."""
    forward = _own(module)

    def come(x: Tensor) -> Tensor:
        return (
            gather(x, tensors.group, _TOKENS, partial=True)
            if tensors.is_sharded(module)
            else copy_to_tp(x, tensors.group)
        )

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _with_states(come, args, kwargs)
        return forward(*args, **kwargs)

    return run


def replicated_block(module: nn.Module, tensors: Tensors) -> Forward:
    """A block whose children meet at each projection (fused qkv, norms over all heads): every rank holds all activations in between."""
    forward = _own(module)

    def run(*args: Any, **kwargs: Any) -> Any:
        if not tensors.is_sharded(module):
            return forward(*args, **kwargs)
        args, kwargs = _with_states(lambda x: gather(x, tensors.group, _TOKENS, partial=False), args, kwargs)
        out = forward(*args, **kwargs)
        if isinstance(out, tuple):
            return (split(out[0], tensors.group, _TOKENS), *out[1:])
        return split(out, tensors.group, _TOKENS)

    return run


def first_layer(module: nn.Module, tensors: Tensors) -> Forward:
    """From here on the tokens are cut."""
    forward = _own(module)

    def run(*args: Any, **kwargs: Any) -> Any:
        if tensors.is_sharded(module):
            args, kwargs = _with_states(lambda x: split(x, tensors.group, _TOKENS), args, kwargs)
        return forward(*args, **kwargs)

    return run


def final_norm(module: nn.Module, tensors: Tensors) -> Forward:
    """The last module on cut tokens: its output is whole again."""
    forward = whole(module, tensors, partial=False, inside_cut=True)

    def run(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        return gather(out, tensors.group, _TOKENS, partial=False) if tensors.is_sharded(module) else out

    return run


def vocabulary_rows(module: nn.Embedding, tensors: Tensors, start: int) -> Forward:
    """An embedding of which this rank has the rows from ``start`` on: foreign tokens give zeros, the sum is the look-up."""
    forward = _own(module)
    rows = module.num_embeddings // tensors.group.size()
    if module.padding_idx is not None:  # its row gets no gradient, on the rank that has it
        module.padding_idx = module.padding_idx - start if start <= module.padding_idx < start + rows else None

    def run(ids: Tensor) -> Tensor:
        mine = ids - start
        outside = (mine < 0) | (mine >= rows)
        with local_parameters(module, tensors.group):
            out: Tensor = forward(mine.masked_fill(outside, 0))
        return reduce_from_tp(out.masked_fill(outside.unsqueeze(-1), 0.0), tensors.group)

    return run


def _own(module: nn.Module) -> Forward:
    """The forward of the module's class, whatever class an engine or a kernel swaps it to later."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return type(module).forward(module, *args, **kwargs)

    return run


def _with_states(
    change: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with its hidden states [1, T, H] changed: the first argument, or ``hidden_states``."""
    if args and isinstance(args[0], torch.Tensor):
        return (change(args[0]), *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}
