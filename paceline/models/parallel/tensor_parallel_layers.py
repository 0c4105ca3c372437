"""Forwards of modules whose parameters are sharded over a tp group: plain tensors inside, ``regions`` for
communication.

Each wraps the module's own forward (class, names and parameters stay) and computes with this rank's shards.
With sequence parallelism the residual stream between blocks is sharded along the tokens. A forward outside of
a packed micro-batch (generation, one token at a time) does not shard it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from torch import Tensor, nn

from paceline.models.attention.sequence_info import sequence_info_of
from paceline.models.lora.expert_lora import FusedExperts
from paceline.models.module_tensors import replaced
from paceline.models.parallel.tp_regions import (
    Group,
    ReduceScatter,
    block_of,
    copy_to_tp,
    gather,
    local,
    reduce_from_tp,
    split,
)
from paceline.models.replace_forward import own_class
from paceline.protocols.images import ImageFeatures

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOKENS, _FEATURES = 1, -1  # dims of [1, T, H]
Forward = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class TensorParallelGroup:
    """The tp group of one model, and whether its residual stream is sharded along the tokens."""

    group: Group
    sequence_parallel: bool

    def is_sharded(self, module: nn.Module) -> bool:
        """Return whether the tokens are sharded in the running forward."""
        return self.sequence_parallel and sequence_info_of(module) is not None


@contextmanager
def local_parameters(
    module: nn.Module, group: Group, *, partial: bool = False, hide: str | None = None
) -> Iterator[None]:
    """Inside the context ``module``'s own parameters are this rank's shards, without the one named ``hide``.

    ``partial``: their gradients are summed over the group.
    """
    # The module's own forward reads ``self.weight``: for its length the shard stands there.
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


def whole(module: nn.Module, tensors: TensorParallelGroup, *, partial: bool, inside_cut: bool) -> Forward:
    """Forward with replicated parameters.

    ``partial``: each rank applies them to its own heads; ``inside_cut``: to its own tokens, if these are
    sharded. In both cases gradients are summed over the group.
    """
    forward = own_forward(module)

    def run(*args: Any, **kwargs: Any) -> Any:
        summed = partial or (inside_cut and tensors.is_sharded(module))
        with local_parameters(module, tensors.group, partial=summed):
            return forward(*args, **kwargs)

    return run


def colwise(module: nn.Module, tensors: TensorParallelGroup, *, gathers: bool) -> Forward:
    """Column-parallel linear layer (rows of the [out, in] weight): replicated input, this rank's output
    features.

    ``gathers``: returns all output features, and the input's gradient is summed here.
    """
    forward = own_forward(module)

    def run(x: Tensor) -> Tensor:
        # else ``sharded_block`` did it for all projections
        x = copy_to_tp(x, tensors.group) if gathers else x
        with local_parameters(module, tensors.group):
            out: Tensor = forward(x)
        return gather(out, tensors.group, _FEATURES, partial=False) if gathers else out

    return run


def rowwise(
    module: nn.Module, tensors: TensorParallelGroup, *, splits: bool, linear: nn.Module | None = None
) -> Forward:
    """Row-parallel linear layer (columns of the [out, in] weight): this rank's input features, output summed
    over the group; the bias is added once.

    ``splits``: the input is replicated and is split here; ``linear``: the layer with weight and bias, if
    ``module`` wraps it.
    """
    forward, linear = own_forward(module), linear or module

    def run(x: Tensor) -> Tensor:
        x = split(x, tensors.group, _FEATURES) if splits else x
        # A bias added on each rank would count once per rank in the sum.
        with local_parameters(linear, tensors.group, hide="bias"):
            out: Tensor = forward(x)
        cut = not splits and tensors.is_sharded(module)
        if cut:
            out = ReduceScatter.apply(out, tensors.group, _TOKENS)
        else:
            out = reduce_from_tp(out, tensors.group)
        bias = local(linear._parameters.get("bias"))
        if bias is None:
            return out
        # On sharded tokens a rank sees part of them, so the bias's gradients are summed.
        return out + (copy_to_tp(bias, tensors.group) if cut else bias).to(out.dtype)

    return run


def sharded_block(module: nn.Module, tensors: TensorParallelGroup) -> Forward:
    """An attention or MLP whose column-parallel children return their own features: its input enters the
    group once for all of them.
    """

    def come(x: Tensor) -> Tensor:
        return (
            gather(x, tensors.group, _TOKENS, partial=True)
            if tensors.is_sharded(module)
            else copy_to_tp(x, tensors.group)
        )

    return _with_states(module, come)


def replicated_block(module: nn.Module, tensors: TensorParallelGroup) -> Forward:
    """A block whose children gather at each projection (fused qkv, norms over all heads): all ranks hold all
    activations in between.
    """

    def come(x: Tensor) -> Tensor:
        return gather(x, tensors.group, _TOKENS, partial=False) if tensors.is_sharded(module) else x

    def leave(out: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        if not tensors.is_sharded(module):
            return out
        if isinstance(out, tuple):
            return (split(out[0], tensors.group, _TOKENS), *out[1:])
        return split(out, tensors.group, _TOKENS)

    return _then(_with_states(module, come), leave)


def with_local_children(
    module: nn.Module, children: Sequence[nn.Module], tensors: TensorParallelGroup
) -> Forward:
    """The module's own forward, in which the replicated parameters of ``children`` are plain tensors too. A
    layer with state reads its convolution's weight itself, without calling the convolution.
    """
    forward = vars(module).get("forward") or own_forward(module)

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for child in children:
                stack.enter_context(local_parameters(child, tensors.group))
            return forward(*args, **kwargs)

    return run


def local_image_features(trunk: PreTrainedModel, tensors: TensorParallelGroup) -> None:
    """Let ``trunk.get_image_features``, which no forward is around, read the trunk's own parameters as plain
    tensors.
    """
    compute = cast("Callable[..., ImageFeatures]", trunk.get_image_features)

    @wraps(compute)
    def run(*args: Tensor, **inputs: Tensor) -> ImageFeatures:
        with local_parameters(trunk, tensors.group):
            return compute(*args, **inputs)

    vars(trunk)["get_image_features"] = run


def first_layer(module: nn.Module, tensors: TensorParallelGroup) -> Forward:
    """The first decoder layer: tokens are sharded from here on."""
    return _with_states(
        module, lambda x: split(x, tensors.group, _TOKENS) if tensors.is_sharded(module) else x
    )


def final_norm(module: nn.Module, tensors: TensorParallelGroup) -> Forward:
    """The last module on sharded tokens: its output is gathered."""

    def leave(out: Tensor) -> Tensor:
        return gather(out, tensors.group, _TOKENS, partial=False) if tensors.is_sharded(module) else out

    return _then(whole(module, tensors, partial=False, inside_cut=True), leave)


def vocabulary_rows(module: nn.Embedding, tensors: TensorParallelGroup, start: int) -> Forward:
    """An embedding of which this rank has the rows from ``start`` on. Tokens of other ranks give zeros; the
    sum over the group is the look-up.
    """
    forward = own_forward(module)
    rows = module.num_embeddings // tensors.group.size()
    if module.padding_idx is not None:  # set on the rank that has its row, which gets no gradient
        module.padding_idx = (
            module.padding_idx - start if start <= module.padding_idx < start + rows else None
        )

    def run(ids: Tensor) -> Tensor:
        mine = ids - start
        outside = (mine < 0) | (mine >= rows)
        with local_parameters(module, tensors.group):
            # A valid row for tokens of other ranks; its result is set to zero below.
            out: Tensor = forward(mine.masked_fill(outside, 0))
        return reduce_from_tp(out.masked_fill(outside.unsqueeze(-1), 0.0), tensors.group)

    return run


def own_forward(module: nn.Module) -> Forward:
    """Return the forward of the module's class at the time of the call, as an engine or a kernel may swap the
    class later.
    """

    @wraps(MethodType(type(module).forward, module))  # Transformers reads which arguments a model takes
    def run(*args: Any, **kwargs: Any) -> Any:
        return type(module).forward(module, *args, **kwargs)

    return run


def with_argument(module: nn.Module, name: str, change: Callable[[Tensor], Tensor]) -> Forward:
    """Return the module's own forward with ``change`` applied to its argument ``name``, or to the first
    one."""
    forward = vars(module).get("forward") or own_forward(module)  # that of a compiled layer, if it is one

    def run(*args: Any, **kwargs: Any) -> Any:
        if name in kwargs:
            return forward(*args, **{**kwargs, name: change(kwargs[name])})
        return forward(change(args[0]), *args[1:], **kwargs)

    return run


def _with_states(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Forward:
    """Return the module's own forward with ``change`` applied to the hidden states [1, T, H]."""
    return with_argument(module, "hidden_states", change)


def _then(forward: Callable[P, R], change: Callable[[R], R]) -> Callable[P, R]:
    """Return ``forward`` with its result changed."""

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return change(forward(*args, **kwargs))

    return run


def own_alibi_heads(attention: nn.Module, tensors: TensorParallelGroup) -> Forward:
    """Forward of this rank's heads, with their part of ALiBi's biases [rows × heads, 1, keys]."""
    held = vars(attention)
    heads: int = held["num_heads"]
    held["num_heads"] = heads // tensors.group.size()

    def own(alibi: Tensor) -> Tensor:
        return block_of(alibi.view(-1, heads, *alibi.shape[1:]), tensors.group, 1).flatten(0, 1)

    return with_argument(attention, "alibi", own)


EXPERTS = "moe_tp_experts"
_ARGUMENTS = ("hidden_states", "top_k_index", "top_k_weights")


def plan_without_experts(plan: Mapping[str, str]) -> dict[str, str]:
    """Return a family's plan without its entries for experts' tensors, which are sharded as whole experts.

    Transformers' plans cut every expert by columns. Gate and up lie in one tensor there, so blocks of it
    would not be columns of both. Whole experts are contiguous blocks, which FSDP2, optimizers and checkpoints
    take as any other. On average every rank computes the same share of the tokens' products.
    """
    experts = tuple(f"{pattern}." for pattern, style in plan.items() if style == EXPERTS)
    return {pattern: style for pattern, style in plan.items() if not pattern.startswith(experts)}


def experts_obstacle(module: nn.Module, size: int) -> str:
    """Return why a module of experts cannot be shared over ``size`` ranks; empty if it can."""
    kind = own_class(module)
    arguments = tuple(inspect.signature(inspect.unwrap(kind.forward)).parameters)[1:4]
    if not hasattr(kind, "_apply_gate") or arguments != _ARGUMENTS:
        return f"{kind.__name__} does not take the experts of each token"
    count = cast(FusedExperts, module).num_experts
    held = list(module.parameters())
    if not held or len(held) != len(module._parameters) or any(p.shape[0] != count for p in held):
        return f"{kind.__name__} has parameters that are not the experts'"
    return f"{count} experts cannot be split into {size} equal parts" if count % size else ""


def local_experts_forward(module: nn.Module, tensors: TensorParallelGroup) -> Forward:
    """Forward of this rank's experts: replicated hidden states, choices and weights of all tokens; the sum
    over the group is every expert's.
    """
    forward, layer, group = own_forward(module), cast(FusedExperts, module), tensors.group
    mine = layer.num_experts // group.size()
    first = group.rank() * mine
    vars(module)["_is_expert_parallel"] = True  # then Transformers skips tokens of experts beyond the last

    def run(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        # Each rank's experts give part of the gradients of both.
        hidden, weights = (copy_to_tp(x, group) for x in (hidden_states, top_k_weights))
        local_index = top_k_index - first
        others = (local_index < 0) | (local_index >= mine)
        # outside its routers are counted over all
        with local_parameters(module, group), replaced(module, num_experts=mine):
            out: Tensor = forward(
                # ``mine`` is one beyond the last expert: Transformers skips it.
                hidden,
                local_index.masked_fill(others, mine),
                weights.masked_fill(others, 0.0),
            )
        return reduce_from_tp(out, group)

    return run
