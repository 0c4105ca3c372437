"""The names of a folder with quantized weights: which stored tensors make one weight. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline.core.json_types import Json
from paceline.core.safetensors_header import StoredTensor
from paceline.plan.model.quantized_weights import PackedWeight, layouts


@dataclass(frozen=True)
class PackedNames:
    """``weights``: a weight's name in the model -> what a formula calls its parts -> their stored names;
    ``idle``: names that scale activations and have no part in a weight; ``numbers``: of a weight, with
    padding; ``lacking``: parts that no file has.
    """

    weights: Mapping[str, Mapping[str, str]]
    idle: frozenset[str]
    numbers: Mapping[str, int]
    lacking: tuple[str, ...]
    _made_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def others(self, stored: Mapping[str, StoredTensor]) -> set[str]:
        """Return the dtypes of what is not part of a quantized weight."""
        return {stored[name].dtype for name in self.plain(stored) if name not in self.weights}

    def plain(self, stored: Iterable[str]) -> list[str]:
        """Return the names that the files would have if their weights were plain."""
        inside = {name for parts in self.weights.values() for name in parts.values()} | self.idle
        return [*(name for name in stored if name not in inside), *self.weights]

    def files_of(self, name: str) -> tuple[str, ...]:
        """Return the names in the files of one of ``plain``."""
        if name not in self.weights:
            return (name,)
        return (*self.weights[name].values(), *self._made_of.get(name, ()))

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in bfloat16."""
        return 2 * sum(self.numbers.values())


def packed_names(stored: Mapping[str, StoredTensor], settings: Mapping[str, Json]) -> PackedNames:
    """Find the quantized weights among ``stored``, all tensors of a folder with these settings."""
    weights: dict[str, dict[str, str]] = {}
    numbers: dict[str, int] = {}
    beside: dict[str, tuple[str, ...]] = {}
    lacking: list[str] = []
    for layout in layouts(settings):
        for name in sorted(stored):
            found = _parts(name, layout, stored)
            if found is None:
                continue
            base = name.removesuffix(layout.first) if layout.first else name
            ends = {end: what for end, what in layout.parts.items() if base + end in stored}
            needed = [end for end in layout.parts if end not in layout.optional and end not in ends]
            if "scale" in layout.parts.values() and "scale" not in ends.values():
                needed.append("_scale")
            lacking += [base + end for end in needed]
            plain = base + layout.plain
            weights[plain] = {what: base + end for end, what in ends.items()}
            size = 1
            for length in stored[name].shape:
                size *= length
            numbers[plain] = size * layout.count
            module = plain.removesuffix(".weight")
            idle = (*(module + end for end in layout.idle), *(plain + "_" + end[1:] for end in layout.idle))
            beside[plain] = tuple(n for n in idle if n in stored)
    every = frozenset(name for some in beside.values() for name in some)
    return PackedNames(weights, every, numbers, tuple(lacking), beside)


def _parts(name: str, layout: PackedWeight, stored: Mapping[str, StoredTensor]) -> str | None:
    """Return the name if it is of the numbers of a weight in this layout."""
    if layout.dtypes:
        return name if stored[name].dtype in layout.dtypes else None
    return name if name.endswith(layout.first) else None
