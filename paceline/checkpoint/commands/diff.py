"""``paceline checkpoints diff``: what differs between two checkpoints, in tensors and in state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.checkpoint.format.tensor_index import TensorName
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.json_types import Json, JsonObject


@dataclass(frozen=True)
class Change:
    """The change of a tensor: largest difference, and the difference's norm over the first tensor's."""

    name: TensorName
    largest: float
    relative: float

    def to_json(self) -> JsonObject:
        return {
            "role": self.name.role,
            "kind": self.name.kind,
            "name": self.name.name,
            "max_abs": _number(self.largest),
            "relative": _number(self.relative),
        }


@dataclass(frozen=True)
class CheckpointDifference:
    """``changed``: tensors with other values; ``of_form``: tensors with another shape or dtype."""

    first: Path
    second: Path
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    of_form: tuple[str, ...]
    equal: int
    changed: tuple[Change, ...]
    state: Mapping[str, tuple[Json, Json]]

    def to_json(self) -> JsonObject:
        return {
            "first": str(self.first),
            "second": str(self.second),
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
            "other_shape_or_dtype": list(self.of_form),
            "equal": self.equal,
            "changed": [change.to_json() for change in self.changed],
            "state": {key: list(values) for key, values in self.state.items()},
        }

    def as_text(self, most: int = 20) -> str:
        """Return the difference as lines, with the tensors that moved furthest."""
        lines = [f"first   {self.first}", f"second  {self.second}"]
        for key, (a, b) in self.state.items():
            lines.append(f"{key}: {_short(a)} | {_short(b)}")
        for title, names in (
            ("only in the first", self.only_first),
            ("only in the second", self.only_second),
            ("another shape or dtype", self.of_form),
        ):
            if names:
                lines.append(f"{title}: {len(names)}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}")
        lines.append(f"{self.equal} tensors are equal bit for bit, {len(self.changed)} have other numbers")
        for change in sorted(self.changed, key=lambda c: -c.relative)[:most]:
            name = change.name
            lines.append(
                f"  {change.relative:9.3g} of its norm, at most {change.largest:9.3g} "
                f" {name.kind} of {name.name} ({name.role})"
            )
        return "\n".join(lines)


def compare(first: CheckpointReader, second: CheckpointReader) -> CheckpointDifference:
    """Compare two open checkpoints, with one tensor of each in memory. Raises CheckpointError."""
    ours, theirs = set(first.names()), set(second.names())
    of_form, changed, equal = [], [], 0
    for name in (n for n in first.names() if n in theirs):
        key = (name.role, name.name, name.kind)
        if first.shape(*key) != second.shape(*key) or first.dtype(*key) != second.dtype(*key):
            of_form.append(name.encode())
            continue
        a, b = first.read(*key), second.read(*key)
        if torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)):
            equal += 1
            continue
        a, b = a.to(torch.float64), b.to(torch.float64)
        norm, moved = float(a.norm()), float((b - a).norm())
        changed.append(Change(name, float((b - a).abs().max()), moved / norm if norm else math.inf))
    return CheckpointDifference(
        first.path,
        second.path,
        tuple(sorted(n.encode() for n in ours - theirs)),
        tuple(sorted(n.encode() for n in theirs - ours)),
        tuple(of_form),
        equal,
        tuple(changed),
        dict(_state(first.state, second.state)),
    )


def _state(first: JsonObject, second: JsonObject) -> Iterator[tuple[str, tuple[Json, Json]]]:
    """Yield the values of state that differ, by their key paths."""
    a, b = dict(_flat(first, "")), dict(_flat(second, ""))
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key):
            yield key, (a.get(key), b.get(key))


def _flat(value: JsonObject, prefix: str) -> Iterator[tuple[str, Json]]:
    for key, child in value.items():
        if isinstance(child, dict):
            yield from _flat(child, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", child


def _number(value: float) -> Json:
    return value if math.isfinite(value) else str(value)


def _short(value: Json) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "…"
