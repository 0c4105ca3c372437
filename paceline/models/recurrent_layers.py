"""Layers that pass a state from token to token: linear attention, state spaces, short convolutions. In a
packed forward they see one document at a time.

Transformers' layers expect one document a row, unless kernels are installed that take boundaries
(``state_kernels``). So a layer gets the documents as rows padded at the end, in groups of similar length, and
its outputs are unpadded again. The layers are causal, so padding behind a document's end changes nothing
before it. Everything else of the model (projections of attention, experts, norms) sees the packed row.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from paceline.models.attention.sequence_info import PackedSequenceInfo, sequence_info_of
from paceline.models.replace_forward import class_behind, replace_forward

_STATE = "cache_params"  # the parameter by which Transformers' layers take states of earlier tokens
_HIDDEN = ("hidden_states", "input_states")
_MASKS = ("attention_mask", "conv_mask")
_OF_STATE = frozenset({"linear_attention", "conv"})  # layer types
_CACHES = frozenset({"cache_params", "past_key_values"})


class PerDocumentLayer(nn.Module):
    """The class that a layer with state is swapped to; keeps the layer's parameters, attributes and names.

    ends  the argument by which the layer's kernels take the ends of documents; None: they take none
    """

    ends: str | None = None

    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer's own forward; in a packed forward on each document separately: hidden states [1, T,
        H]."""
        layout = sequence_info_of(self)
        if layout is None:
            return super().forward(*args, **kwargs)
        bound = inspect.signature(super().forward).bind(*args, **kwargs)
        bound.arguments.update({name: None for name in _MASKS if name in bound.arguments})
        tokens = bound.arguments[next(name for name in _HIDDEN if name in bound.arguments)].shape[1]
        if self.ends is not None:
            return _whole(super().forward, bound, tokens, layout, boundaries(self.ends, layout))
        groups = _split(bound.arguments, tokens, layout)
        outs = []
        for arguments in groups:
            bound.arguments.update(arguments)
            outs.append(super().forward(*bound.args, **bound.kwargs))
        return _joined(outs, layout)


def _whole(
    forward: Callable[..., Any],
    bound: inspect.BoundArguments,
    tokens: int,
    layout: PackedSequenceInfo,
    taken: Mapping[str, Tensor],
) -> Any:
    """Return the packed row's output of kernels that take boundaries, with shared prompts repeated."""
    shared = layout.shared
    if shared is not None:
        for name, value in bound.arguments.items():
            if isinstance(value, Tensor) and value.dim() > 1 and value.shape[:2] == (1, tokens):
                bound.arguments[name] = shared.full(value, 1)
    out = forward(*bound.args, **{**bound.kwargs, **taken})
    if shared is None:
        return out
    return (shared.kept(out[0], 1), *out[1:]) if isinstance(out, tuple) else shared.kept(out, 1)


def keep_documents_apart(hf: nn.Module) -> int:
    """Swap every layer with state of a model; return how many there are."""
    layers = list(state_layers(hf))
    for layer in layers:
        if not isinstance(layer, PerDocumentLayer):
            vars(layer)["ends"] = name_of_ends(type(layer))
            layer.__class__ = replace_forward(PerDocumentLayer, type(layer))
    return len(layers)


def how_kept_apart(hf: nn.Module) -> str:
    """Return a log line on how the swapped layers keep documents apart."""
    by_kernels = {
        class_of(module) for module in hf.modules() if isinstance(module, PerDocumentLayer) and module.ends
    }
    rows = "each document by itself: padded rows in groups of about one length"
    if not by_kernels:
        return rows
    taken = f"the kernels of {', '.join(sorted(by_kernels))} take the documents' boundaries"
    others = any(isinstance(module, PerDocumentLayer) and not module.ends for module in hf.modules())
    return f"{taken}; other layers: {rows}" if others else taken


def class_of(layer: nn.Module) -> str:
    """Return the name of a layer's own class, also of a swapped one."""
    return class_behind(type(layer), PerDocumentLayer).__name__


def has_state(module: nn.Module) -> bool:
    """Whether a module is, or holds, a swapped layer with state."""
    return any(isinstance(inner, PerDocumentLayer) for inner in module.modules())


def state_layers(hf: nn.Module) -> Iterator[nn.Module]:
    """Yield the innermost modules that carry a state from token to token by themselves, outside of attention.

    They take ``cache_params``, or hold a convolution over tokens, or take a cache in a layer of a type with
    state.
    """
    kinds = getattr(getattr(hf, "config", None), "layer_types", None) or ()
    inner: set[int] = set()
    for module in reversed(list(hf.modules())):  # children before their parents
        if any(id(child) in inner for child in module.modules()):
            continue
        if _carries_state(module, kinds):
            inner.add(id(module))
            yield module


def _carries_state(module: nn.Module, kinds: Any) -> bool:
    if isinstance(module, PerDocumentLayer):
        return True
    names = inspect.signature(type(module).forward).parameters
    if not any(name in names for name in _HIDDEN):
        return False
    if any(isinstance(child, nn.Conv1d) for child in module.children()):
        return True
    number = getattr(module, "layer_idx", None)
    typed = isinstance(number, int) and number < len(kinds) and kinds[number] in _OF_STATE
    return _STATE in names or (typed and not _CACHES.isdisjoint(names))


def _split(arguments: Mapping[str, Any], tokens: int, layout: PackedSequenceInfo) -> list[dict[str, Any]]:
    """Return, for each group of documents, the per-token arguments [1, T, …]."""
    groups: list[dict[str, Any]] = [{} for _ in layout.by_length.sizes]
    for name, value in arguments.items():
        for group, part in zip(groups, _parts(value, tokens, layout), strict=True):
            if part is not value:
                group[name] = part
    return groups


def _parts(value: Any, tokens: int, layout: PackedSequenceInfo) -> Sequence[Any]:
    """Return ``value`` for each group: as rows of documents, if it is per token."""
    groups = layout.by_length
    if isinstance(value, tuple):
        inner = [_parts(item, tokens, layout) for item in value]
        return list(zip(*inner, strict=True)) if inner else [value] * len(groups.sizes)
    if isinstance(value, Mapping):
        taken = {name: _parts(item, tokens, layout) for name, item in value.items()}
        return [{name: item[i] for name, item in taken.items()} for i in range(len(groups.sizes))]
    if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[:2] != (1, tokens):
        return [value] * len(groups.sizes)
    full = value if layout.shared is None else layout.shared.full(value, 1)
    return groups.rows(full.squeeze(0))


def _joined(outs: Sequence[Any], layout: PackedSequenceInfo) -> Any:
    """Join the layer's results of all groups to one packed row: a tensor, or a tuple that begins with one.
    The rest of a tuple (states, attention weights) is not read in training.
    """
    if isinstance(outs[0], tuple):
        return _joined([out[0] for out in outs], layout), *(None for _ in outs[0][1:])
    out = layout.by_length.flat(outs).unsqueeze(0)
    return out if layout.shared is None else layout.shared.kept(out, 1)


_ENDS, _INDEX, _ENDS_OF_LAYER = "cu_seqlens", "seq_idx", "cu_seq_lens_q"
_ONE_TOKEN = re.compile("update|recurrent")  # functions of decoding
_PACKAGE = "is_new_implementation"  # in Transformers' wrapper: whether a package's function is called


def boundaries(name: str, layout: PackedSequenceInfo) -> dict[str, Tensor]:
    """Return the document boundaries of a packed row as arguments of a layer's forward. For
    flash-linear-attention these are the ends, int32 [D + 1], under ``name``; for other packages the document
    of each token, int32 [1, T].
    """
    lengths = layout.cu_seqlens[1:] - layout.cu_seqlens[:-1]
    documents = torch.arange(len(lengths), device=lengths.device, dtype=torch.int32)
    index = documents.repeat_interleave(lengths, output_size=layout.bounds[-1])
    return {name: layout.cu_seqlens, _INDEX: index[None]}


def name_of_ends(layer: type) -> str | None:
    """Return the argument by which a layer's forward takes the ends of documents; None where its kernels take
    no boundaries.
    """
    forward = inspect.unwrap(layer.__dict__.get("forward", layer))
    if not isinstance(forward, FunctionType):
        return None
    kinds = {parameter.kind for parameter in inspect.signature(forward).parameters.values()}
    used = [taken for name, taken in _functions(forward) if not _ONE_TOKEN.search(name)]
    if inspect.Parameter.VAR_KEYWORD not in kinds or not used or not all(used):
        return None
    return _ENDS_OF_LAYER if _ENDS_OF_LAYER in forward.__code__.co_consts else _ENDS


def _functions(forward: FunctionType) -> Iterator[tuple[str, bool]]:
    """Yield the functions with kernels that a forward calls, and whether a package's takes boundaries."""
    for name in forward.__code__.co_names:
        function = forward.__globals__.get(name)
        if not isinstance(function, FunctionType):
            continue
        held = inspect.getclosurevars(function).nonlocals
        if _PACKAGE in held:
            taken = {_ENDS, _INDEX} & set(held.get("applicable_params", ()))
            yield f"{name} {function.__name__}", bool(held[_PACKAGE] and taken)
