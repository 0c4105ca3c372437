"""The tensors of a GGUF file: their sources in a Hugging Face folder, and their changes.

Each change is what llama.cpp expects and what Transformers undoes when it reads the file. Changes work on
tensors without storage, too, so that shapes are known before anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from paceline.checkpoint.export.gguf.config_values import whole
from paceline.core.json_types import JsonObject

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
#: Matrices that llama.cpp reads in float32 alone: routers, short kernels, decays, positions.
_IN_FLOAT32 = re.compile(r"ffn_gate_inp|ssm_conv1d|shortconv\.conv\.|position_embd")


@dataclass(frozen=True)
class Folder:
    """The tensors of a folder's safetensors files, read one by one."""

    files: Mapping[str, safe_open]

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self.files[name].get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor

    def empty(self, name: str) -> Tensor:
        """Return the tensor without storage."""
        return self[name].to("meta")


@contextmanager
def opened(folder: Path) -> Iterator[Folder]:
    """Yield the tensors of a folder."""
    files: dict[str, safe_open] = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = safe_open(path, framework="pt")
        files |= dict.fromkeys(file.keys(), file)  # type: ignore[no-untyped-call]
    yield Folder(files)


@dataclass(frozen=True)
class Stored:
    """A tensor of the file: one tensor of the folder, or those of a layer's experts stacked, then changed."""

    name: str
    sources: tuple[str, ...]
    is_stack: bool
    changes: tuple[TensorChange, ...]

    def made(self, read: Callable[[str], Tensor], config: JsonObject) -> Tensor:
        """Build it from the tensors that ``read`` returns."""
        parts = [read(source) for source in self.sources]
        tensor = torch.stack(parts) if self.is_stack else parts[0]
        for change in self.changes:
            tensor = change.apply(tensor, config)
        return tensor

    def kind(self, ndim: int, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in the file: ``dtype`` for matrices but those that are read in float32."""
        is_matrix = ndim > 1 and self.name.endswith(".weight") and not _IN_FLOAT32.search(self.name)
        return dtype if is_matrix else torch.float32

    @property
    def exact(self) -> bool:
        """Whether it comes back bit for bit (in the file's dtype)."""
        return all(change.exact for change in self.changes)


def stored(
    folder: Folder,
    name_of: Callable[[str], str | None],
    changes: Sequence[TensorChange],
    renamed: Sequence[tuple[str, str]],
) -> list[Stored] | str:
    """Return the file's tensors, or the name of a folder's tensor that GGUF has no name for.

    ``name_of`` gives GGUF's name of a module (or of a parameter that is none's weight or bias).
    """
    groups: dict[str, dict[int, str]] = {}
    stacked = set[str]()
    for source in folder.files:
        expert = _EXPERT.search(source)
        name = _EXPERT.sub(".experts.", source)
        for pattern, replacement in renamed:
            name = re.sub(pattern, replacement, name)
        stem, dot, suffix = name.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, dot, suffix = name, "", ""
        # Some are named as in the class without a head: without its first part.
        module = name_of(stem) or name_of(stem.partition(".")[2])
        if module is None:
            return source
        gguf_name = module + dot + suffix
        groups.setdefault(gguf_name, {})[int(expert[1]) if expert else len(groups.get(gguf_name, ()))] = (
            source
        )
        if expert:
            stacked.add(gguf_name)
    return [
        Stored(
            name,
            tuple(parts[index] for index in sorted(parts)),
            name in stacked,
            tuple(change for change in changes if re.search(f"{change.names}$", name)),
        )
        for name, parts in groups.items()
    ]


#: A value that is rounded twice on its way (a norm plus one minus one, a logarithm's exponent) may differ by
#: this much of one plus its magnitude: 4 units in the last place of float32.
ROUNDED = 2.0**-21


@dataclass(frozen=True)
class TensorChange:
    """The change of tensors whose GGUF name ends with a match of the regular expression ``names``."""

    names: str
    apply: Callable[[Tensor, JsonObject], Tensor]
    exact: bool = True


def rotary_pairs(tensor: Tensor, config: JsonObject, *, num_heads: str) -> Tensor:
    """Interleave the rows of each head as GGUF's Llama rotates them: pairs side by side, not half a head
    apart. ``num_heads``: the config's key of how many there are.
    """
    heads = whole(config, num_heads)
    parts = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return parts.swapaxes(1, 2).reshape(tensor.shape)


def plus_one(tensor: Tensor, config: JsonObject) -> Tensor:
    """Turn a norm that multiplies by 1 + weight into one that multiplies by its weight."""
    return tensor.float() + 1


def minus_exponential(tensor: Tensor, config: JsonObject) -> Tensor:
    """Turn a decay stored as its logarithm into -exp(decay)."""
    return -torch.exp(tensor.float())


def without_ones(tensor: Tensor, config: JsonObject) -> Tensor:
    """Remove axes of length one: a depthwise kernel's channel, a gate's single row."""
    return tensor.squeeze()


def transposed(tensor: Tensor, config: JsonObject) -> Tensor:
    """GPT-2's layers keep (in, out)."""
    return tensor.T


def queries_keys_values(tensor: Tensor, config: JsonObject) -> Tensor:
    """Reorder rows from (head; query, key, value) to all queries, all keys, all values."""
    heads = whole(config, "n_head")
    parts = tensor.reshape(heads, 3, tensor.shape[0] // heads // 3, *tensor.shape[1:])
    return parts.swapaxes(0, 1).reshape(tensor.shape)


def tiled(tensor: Tensor, config: JsonObject, width: int) -> Tensor:
    """Reorder value heads from grouped by key head to interleaved over key heads; ``width`` rows a head."""
    keys, values = whole(config, "linear_num_key_heads"), whole(config, "linear_num_value_heads")
    parts = tensor.reshape(keys, values // keys, width, *tensor.shape[1:])
    return parts.swapaxes(0, 1).reshape(tensor.shape)


def values_tiled(tensor: Tensor, config: JsonObject) -> Tensor:
    """Reorder the rows that produce value heads: all rows of a tensor, or those after queries and keys."""
    width = whole(config, "linear_value_head_dim")
    first = tensor.shape[0] - width * whole(config, "linear_num_value_heads")
    return torch.cat([tensor[:first], tiled(tensor[first:], config, width)])


def inputs_tiled(tensor: Tensor, config: JsonObject) -> Tensor:
    """Reorder the columns that take value heads."""
    return tiled(tensor.T, config, whole(config, "linear_value_head_dim")).T
