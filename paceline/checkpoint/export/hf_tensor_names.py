"""Convert tensors to the names and shapes that ``save_pretrained`` writes: the layout of released models.

Transformers 5 stores the experts of a layer as one tensor and renames parts of some models when it loads
them. It reverses that when it saves. Other programs (vLLM, SGLang, older Transformers) read the released
layout only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.checkpoint.format.safetensors_file import TensorEntry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYER = re.compile(r"^(.*?\.\d+)\.")


def hub_entries(model: PreTrainedModel, entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Return a full model's ``entries``, named as in its class, as ``save_pretrained`` would write them.

    ``model`` may be on the meta device: only its class and config are used. A tensor is loaded when it is
    written. If one tensor becomes several (the experts of a layer), memory holds it and all of them.
    If several become one, memory holds the tensors of its layer. These results lie next to each
    other in a file.
    """
    expected = _reverted(model, {e.name: _empty(e) for e in entries})
    by_name = {e.name: e for e in entries}
    if set(expected) == set(by_name) and all(
        expected[n].shape == torch.Size(by_name[n].shape) for n in expected
    ):
        return list(entries)
    # Convert in the smallest groups that give the right result: single tensors, layers, the whole model.
    for key in (str, _layer, lambda _: ""):
        try:
            converted = _grouped(model, entries, key)
        except (RuntimeError, ValueError, KeyError, IndexError):  # needs tensors of several of these groups
            continue
        if {e.name: torch.Size(e.shape) for e in converted} == {n: t.shape for n, t in expected.items()}:
            return converted
    raise AssertionError("the complete model is one of the groups that were tried")


def _layer(name: str) -> str:
    match = _LAYER.match(name)
    return match[1] if match else ""


def _grouped(
    model: PreTrainedModel, entries: Sequence[TensorEntry], key: Callable[[str], str]
) -> list[TensorEntry]:
    """Convert each group of ``entries`` by itself."""
    groups: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        groups.setdefault(key(entry.name), []).append(entry)
    converted, ready = [], _Ready(model)
    for word, group in groups.items():
        shapes = _reverted(model, {e.name: _empty(e) for e in group})
        if set(shapes) == {e.name for e in group} and all(shapes[e.name].shape == e.shape for e in group):
            converted += group
            continue
        converted += [
            TensorEntry(name, t.dtype, tuple(t.shape), ready.loader(group, name), beside=word)
            for name, t in shapes.items()
        ]
    return converted


@dataclass
class _Ready:
    """Results of the last converted group of tensors. Each is kept until it is used once; all are dropped
    before the next group.
    """

    model: PreTrainedModel
    found: dict[str, Tensor] = field(default_factory=dict)

    def loader(self, group: Sequence[TensorEntry], name: str) -> Callable[[], Tensor]:
        """Return a function that returns the tensor ``name`` that ``group`` becomes."""

        def load() -> Tensor:
            if name not in self.found:
                self.found = {}
                self.found = _reverted(self.model, {e.name: e.load().detach() for e in group})
            tensor = self.found.pop(name)
            # a copy: what waits to be hashed would keep all that lies in the same memory
            return (
                tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor.contiguous()
            )

        return load


def _empty(entry: TensorEntry) -> Tensor:
    return torch.empty(entry.shape, dtype=entry.dtype, device="meta")


def _reverted(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    released: dict[str, Tensor] = revert_weight_conversion(model, dict(tensors))
    return released
