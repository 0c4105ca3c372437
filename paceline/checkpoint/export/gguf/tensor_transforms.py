"""What GGUF keeps otherwise than a Hugging Face folder: functions of a tensor and the model's config.

Each is what llama.cpp expects and what Transformers undoes when it reads the file. They work on tensors
without storage, too, so that shapes are known before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.checkpoint.export.gguf.config_values import whole
from paceline.core.json_types import JsonObject

#: A value that is rounded twice on its way (a norm plus one minus one, a logarithm's exponent) may differ by
#: this much of one plus its magnitude: 4 units in the last place of float32.
ROUNDED = 2.0**-21


@dataclass(frozen=True)
class TensorChange:
    """What happens to the tensors whose name in GGUF ends as the regular expression ``names`` says."""

    names: str
    apply: Callable[[Tensor, JsonObject], Tensor]
    exact: bool = True


def _pairs(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head as GGUF's Llama rotates them: pairs side by side, not half a head apart."""
    parts = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return parts.swapaxes(1, 2).reshape(tensor.shape)


def queries_in_pairs(tensor: Tensor, config: JsonObject) -> Tensor:
    """Interleave the rows of each query head."""
    return _pairs(tensor, whole(config, "num_attention_heads"))


def keys_in_pairs(tensor: Tensor, config: JsonObject) -> Tensor:
    """Interleave the rows of each key head."""
    return _pairs(tensor, whole(config, "num_key_value_heads"))


def plus_one(tensor: Tensor, config: JsonObject) -> Tensor:
    """A norm that multiplies by one plus its weight, as one that multiplies by its weight."""
    return tensor.float() + 1


def minus_exponential(tensor: Tensor, config: JsonObject) -> Tensor:
    """A decay that is kept as its logarithm."""
    return -torch.exp(tensor.float())


def without_ones(tensor: Tensor, config: JsonObject) -> Tensor:
    """Leave out axes of length one: a depthwise kernel's channel, a gate's single row."""
    return tensor.squeeze()


def transposed(tensor: Tensor, config: JsonObject) -> Tensor:
    """GPT-2's layers keep (in, out)."""
    return tensor.T


def queries_keys_values(tensor: Tensor, config: JsonObject) -> Tensor:
    """Rows by head and then query, key, value, as all queries, all keys, all values."""
    heads = whole(config, "n_head")
    parts = tensor.reshape(heads, 3, tensor.shape[0] // heads // 3, *tensor.shape[1:])
    return parts.swapaxes(0, 1).reshape(tensor.shape)


def _tiled(tensor: Tensor, config: JsonObject, width: int) -> Tensor:
    """Value heads by key head, as one head of every key head after another; ``width`` rows a head."""
    keys, values = whole(config, "linear_num_key_heads"), whole(config, "linear_num_value_heads")
    parts = tensor.reshape(keys, values // keys, width, *tensor.shape[1:])
    return parts.swapaxes(0, 1).reshape(tensor.shape)


def heads_tiled(tensor: Tensor, config: JsonObject) -> Tensor:
    """One row a value head."""
    return _tiled(tensor, config, 1)


def values_tiled(tensor: Tensor, config: JsonObject) -> Tensor:
    """The rows that give value heads: all of a tensor, or those after queries and keys."""
    width = whole(config, "linear_value_head_dim")
    first = tensor.shape[0] - width * whole(config, "linear_num_value_heads")
    return torch.cat([tensor[:first], _tiled(tensor[first:], config, width)])


def inputs_tiled(tensor: Tensor, config: JsonObject) -> Tensor:
    """The columns that take value heads."""
    return _tiled(tensor.T, config, whole(config, "linear_value_head_dim")).T
