"""Whether the kernels' packages behind a layer with state (``flash-linear-attention``, ``causal-conv1d``,
``mamba-ssm``) take the boundaries of documents themselves: the layer then gets the packed row as it is.

Transformers looks for each package when it imports a model and calls it in place of its own function. A layer
gets boundaries only if every function that it computes more than one token with takes them: Jamba's and
Mamba's scans do not, and Transformers' own functions do not either.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import FunctionType

import torch
from torch import Tensor

from paceline.models.attention_context import PackedSequenceInfo

_ENDS, _INDEX, _ENDS_OF_LAYER = "cu_seqlens", "seq_idx", "cu_seq_lens_q"
_ONE_TOKEN = re.compile("update|recurrent")  # functions of decoding
_PACKAGE = "is_new_implementation"  # in Transformers' wrapper: whether a package's function is called


def boundaries(name: str, layout: PackedSequenceInfo) -> dict[str, Tensor]:
    """Return what a layer's forward takes as the documents of a packed row: their ends int32 [D + 1] by
    ``name`` (flash-linear-attention), and the document of each token int32 [1, T] (the others).
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
