"""Convert tensors to the names and shapes that ``save_pretrained`` writes: the layout of released models.

Transformers 5 stores the experts of a layer as one tensor and renames parts of some models when it loads
them; it reverses that when it saves. Other programs (vLLM, SGLang, older Transformers) read the released
layout only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.checkpoint.tensorfile import TensorEntry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYER = re.compile(r"^(.*?\.\d+)\.")


def hub_entries(model: PreTrainedModel, entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Return a full model's ``entries``, named as in its class, as ``save_pretrained`` would write them.

    ``model`` may be on the meta device: only its class and config are used. A tensor is loaded when it is
    written; if one is made from several, or several from one, those of one layer are in memory at a time.
    """
    whole = _reverted(model, {e.name: _empty(e) for e in entries})
    by_name = {e.name: e for e in entries}
    if set(whole) == set(by_name) and all(whole[n].shape == torch.Size(by_name[n].shape) for n in whole):
        return list(entries)
    # Convert in the smallest groups that give the right result: single tensors, layers, the whole model.
    for key in (_itself, _layer, lambda _: ""):
        try:
            made = _grouped(model, entries, key)
        except (RuntimeError, ValueError, KeyError, IndexError):  # needs tensors of several of these groups
            continue
        if {e.name: torch.Size(e.shape) for e in made} == {n: t.shape for n, t in whole.items()}:
            return made
    raise AssertionError("the complete model is one of the groups that were tried")


def _itself(name: str) -> str:
    return name


def _layer(name: str) -> str:
    found = _LAYER.match(name)
    return found[1] if found else ""


def _grouped(
    model: PreTrainedModel, entries: Sequence[TensorEntry], key: Callable[[str], str]
) -> list[TensorEntry]:
    """Convert each group of ``entries`` by itself."""
    groups: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        groups.setdefault(key(entry.name), []).append(entry)
    made = []
    for group in groups.values():
        source = _Group(model, group)
        shapes = _reverted(model, {e.name: _empty(e) for e in group})
        made += [
            TensorEntry(name, t.dtype, tuple(t.shape), source.loader(name)) for name, t in shapes.items()
        ]
    return made


@dataclass
class _Group:
    """Tensors that are converted together; each result is kept until it is taken once."""

    model: PreTrainedModel
    entries: list[TensorEntry]
    ready: dict[str, Tensor] = field(default_factory=dict)

    def loader(self, name: str) -> Callable[[], Tensor]:
        """Return a function that returns the converted tensor ``name``."""

        def load() -> Tensor:
            if name not in self.ready:
                self.ready = dict(_reverted(self.model, {e.name: e.load().detach() for e in self.entries}))
            return self.ready.pop(name).contiguous()

        return load


def _empty(entry: TensorEntry) -> Tensor:
    return torch.empty(entry.shape, dtype=entry.dtype, device="meta")


def _reverted(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    found: dict[str, Tensor] = revert_weight_conversion(model, dict(tensors))
    return found
