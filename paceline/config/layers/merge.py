"""Merge the entries of several layers: later ones win; conflicts within one are errors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from paceline.config import codes
from paceline.config.keys.aliases import AlgorithmAlias
from paceline.config.keys.nearest import nearest
from paceline.config.keys.valid_keys import APEX_LEVEL, same
from paceline.config.schema import field_of, item_model
from paceline.config.sections.types import to_bool
from paceline.config.source import ENVIRONMENT, FOREIGN, YAML, Entry, Source, shown
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import Json, JsonObject, as_object, put_at
from paceline.core.plugins.tables import ALGORITHMS

_ALGORITHM = "training.algorithm"
_ALSO = {"rpo_alpha": "cpo_alpha"}  # the weight of an SFT term on chosen answers, as other algorithms call it
_PRECISION = "training.mixed_precision"
_FLAGS = {"training.fp16": "fp16", "training.bf16": "bf16"}


@dataclass
class Merged:
    """Effective values by path, the winning entry of each, and the findings of the merge."""

    values: JsonObject = field(default_factory=dict)
    winners: dict[str, Entry] = field(default_factory=dict)
    inner: dict[str, Source] = field(default_factory=dict)  # keys inside free-form mappings, by full path
    problems: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)
    file_keys: dict[str, list[Entry]] = field(default_factory=dict)  # set inside a file that a path names
    copied: set[str] = field(default_factory=set)  # mappings that this merge has copied and may modify


def merge(layers: Sequence[Sequence[Entry]]) -> Merged:
    """Merge the layers; later ones win key by key.

    A mapping given whole replaces the earlier one; a key inside a mapping is set in it.
    """
    merged = Merged()
    for entries in _for_the_algorithm([_learned_from(entries) for entries in layers]):
        kept = _without_conflicts(_one_precision(entries, merged), merged)
        # What is inside a value after the value itself, in whichever order they are written
        for entry in sorted(kept, key=lambda entry: len(entry.sub)):
            _apply(entry, merged)
    return merged


def _learned_from(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Turn a loss that is an algorithm here (``aliases.AlgorithmAlias``) into ``training.algorithm``.

    It replaces the algorithm under whose options the loss was given.
    """
    loss = next((entry for entry in entries if isinstance(entry.value, AlgorithmAlias)), None)
    if loss is None:
        return entries
    owner = loss.path.split(".")[1]
    # The algorithm of the options is not meant: pref_loss is written with stage: dpo
    rest = [e for e in entries if e is not loss and not (e.path == _ALGORITHM and e.value == owner)]
    return [*rest, replace(loss, path=_ALGORITHM, value=str(loss.value))]


def _for_the_algorithm(layers: Sequence[Sequence[Entry]]) -> list[list[Entry]]:
    """Move shared options (``Entry.of_algorithm``) to the section of this run's algorithm, if it has them."""
    algorithms = [str(entry.value) for entries in layers for entry in entries if entry.path == _ALGORITHM]
    section = ALGORITHMS.section(algorithms[-1]) if algorithms else None

    def home(entry: Entry) -> Entry:
        option = entry.path.rpartition(".")[2]
        options = (
            ()
            if section is None
            else [name for name in (option, _ALSO.get(option)) if name in section.model_fields]
        )
        return (
            replace(entry, path=f"training.{algorithms[-1]}.{options[0]}")
            if entry.of_algorithm and options
            else entry
        )

    return [[home(entry) for entry in entries] for entries in layers]


def _one_precision(entries: Sequence[Entry], merged: Merged) -> list[Entry]:
    """Replace a layer's ``fp16`` and ``bf16`` by one ``mixed_precision`` entry; both true is an error."""
    flags: list[tuple[str, bool, Entry]] = []
    rest: list[Entry] = []
    # Apex: O0 computes in float32 whatever fp16 says
    if level := next((entry for entry in entries if entry.path == APEX_LEVEL), None):
        others = [e for e in entries if e.path not in (APEX_LEVEL, "training.fp16")]
        on = any(e.path == "training.fp16" for e in entries)
        entries = [*others, *([Entry("training.fp16", False, level.source)] if on else [])]
    for entry in entries:
        if entry.path not in _FLAGS:
            rest.append(entry)
        elif entry.value is not None and entry.value != "auto":
            try:
                flags.append((_FLAGS[entry.path], to_bool(entry.value), entry))
            except PydanticCustomError as exc:
                name = _FLAGS[entry.path]
                merged.problems.append(
                    codes.CONFIG_TYPE(
                        f"{name} {exc.message()}",
                        entry.source.place(),
                        shown(name, entry.value),
                        f"{name}: true",
                    )
                )
    # One flag on: that precision. Only flags off: "no", unless another precision is chosen explicitly
    wanted = [(name, entry) for name, on, entry in flags if on]
    if len({name for name, _ in wanted}) > 1:
        first, second = wanted[0], next(pair for pair in wanted if pair[0] != wanted[0][0])
        merged.problems.append(
            codes.PREC_FP16_AND_BF16(
                f"{first[1].source.place()} and {second[1].source.place()}",
                f"{first[0]}: true ({first[1].source.place()}) and {second[0]}: true"
                f" ({second[1].source.place()})",
            )
        )
    elif wanted:
        rest += [Entry(_PRECISION, name, entry.source) for name, entry in wanted[:1]]
    elif flags:
        explicit = next((e.value for e in rest if e.path == _PRECISION), None)
        before = explicit or merged.values.get(_PRECISION, "auto")
        off = {name for name, _, _ in flags}
        if explicit in off:
            rest += [Entry(_PRECISION, "no", flags[0][2].source)]
        elif explicit is None and (before == "auto" or before in off):
            rest += [Entry(_PRECISION, "no", flags[-1][2].source)]
    return rest


def _without_conflicts(entries: Sequence[Entry], merged: Merged) -> list[Entry]:
    """Return a layer's entries, one per key.

    Two spellings of one key with different values are an error that names both places.
    """
    first: dict[tuple[str, tuple[str, ...]], Entry] = {}
    for entry in entries:
        # The first place is kept, so that the message names both in order
        other = first.setdefault((entry.path, entry.sub), entry)
        if other is entry or same(other.value, entry.value):
            continue
        merged.problems.append(
            codes.CONFIG_CONFLICT(
                f"{'.'.join((entry.path, *entry.sub))} is given two different values",
                where=f"{other.source.place()} and {entry.source.place()}",
                found=(
                    f"{_written(other)} ({other.source.place()}) and {_written(entry)}"
                    f" ({entry.source.place()})"
                ),
                hint="keep one of the two, or give both the same value",
            )
        )
    return list(first.values())


def _written(entry: Entry) -> str:
    name = entry.source.text.split("=")[0].split(".")[-1] or entry.path
    return f"{name}: {shown(entry.path, entry.value, 60)}"


def _apply(entry: Entry, merged: Merged) -> None:
    before = merged.winners.get(entry.path)
    value = entry.value
    if before is not None and _leaves_it(entry, before):
        return
    if entry.sub and takes_items(field_of(entry.path)):
        _apply_item(entry, merged)
        return
    file = merged.values.get(entry.path) if entry.path in NAMED_FILES else None
    if entry.sub and isinstance(file, str) and not file.lstrip().startswith("{"):
        merged.file_keys.setdefault(entry.path, []).append(entry)
        _trace(entry, merged)
        return
    # A key inside a mapping is set in a copy of the lower layers' mapping
    if entry.sub:
        base = as_object(merged.values.get(entry.path))
        # copied once, so that the lower layer's mapping stays unchanged
        value = base if entry.path in merged.copied else copy.deepcopy(base)
        merged.copied.add(entry.path)
        put_at(value, entry.sub, entry.value)
    # Note where the YAML or a higher layer overrides a foreign file's value
    if (
        before is not None
        and before.source.layer == FOREIGN
        and entry.source.layer != FOREIGN
        and not same(before.value, value)
    ):
        merged.notes.append(_overridden(before, entry))
    if not entry.sub:
        merged.copied.discard(entry.path)
        merged.file_keys.pop(entry.path, None)
    _trace(entry, merged)
    merged.values[entry.path] = value
    merged.winners[entry.path] = entry


def _leaves_it(entry: Entry, before: Entry) -> bool:
    """Whether a YAML's ``mixed_precision: auto`` leaves the choice to a file below it, or to the launcher."""
    requested = entry.path == _PRECISION and entry.value == "auto" and entry.source.layer == YAML
    return requested and before.source.layer in (FOREIGN, ENVIRONMENT)


def _apply_item(entry: Entry, merged: Merged) -> None:
    """Set an item of a list, or a key of one; the list itself keeps the source that it has."""
    try:
        value = with_item(entry.path, merged.values.get(entry.path), entry.sub, entry.value)
    except NoItem as exc:
        merged.problems.append(codes.CONFIG_NO_ITEM(exc.what, entry.source.place(), exc.found, exc.hint))
        return
    _trace(entry, merged)
    merged.values[entry.path] = value
    # The list keeps the source it has: one item is not the list
    merged.winners.setdefault(entry.path, entry)


def _trace(entry: Entry, merged: Merged) -> None:
    """Record the source of each key inside a free-form mapping.

    A new value replaces the sources of everything that was inside the old one.
    """
    parents = [".".join((entry.path, *entry.sub[:depth])) for depth in range(1, len(entry.sub))]
    top = ".".join((entry.path, *entry.sub))
    if not entry.sub or top in merged.inner:
        for path in [p for p in merged.inner if p == top or p.startswith(f"{top}.")]:
            del merged.inner[path]
    if entry.sub:
        merged.inner.update(dict.fromkeys((*parents, top), entry.source))
    if isinstance(entry.value, dict):
        merged.inner.update({f"{top}.{key}": entry.source for key in entry.value})
        for key, line in entry.lines.items():
            merged.inner[f"{top}.{key}"] = replace(entry.source, line=line, text=f"{entry.source.text}.{key}")


def _overridden(before: Entry, entry: Entry) -> Diagnostic:
    old: Source = before.source
    return codes.CONFIG_FILE_VALUE_OVERRIDDEN(
        f"{entry.path} is {shown(entry.path, entry.value)}; {old.place()} sets"
        f" {shown(before.path, before.value)}",
        where=entry.source.place(),
        found=f"{old.text} in {old.place()}",
        hint='write "auto" in that file, so that only one place sets the value',
        severity=Severity.NOTE,
    )


#: Keys that name a file, of which single keys can be set: ``training.deepspeed.zero_optimization.stage=2``
NAMED_FILES = ("training.deepspeed", "training.fsdp_config", "training.accelerate_config")


class NoItem(Exception):
    """There is no such item. ``what``, ``found`` and ``hint`` are those of a finding."""

    def __init__(self, what: str, found: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.found, self.hint = what, found, hint


def takes_items(info: FieldInfo | None) -> bool:
    """Whether the field is a list."""
    if info is None:
        return False
    return any(get_origin(kind) is tuple for kind in (info.annotation, *get_args(info.annotation)))


def leaf_of(path: str, inner: tuple[str, ...]) -> FieldInfo | None:
    """Return the field of an item's key (``data.train`` and ``0``, ``name``), or of ``path`` itself."""
    info = field_of(path)
    if not inner or info is None:
        return info
    model = item_model(info) if len(inner) == 2 else None
    return model.model_fields.get(inner[1]) if model is not None else None


def with_item(path: str, value: Json, inner: tuple[str, ...], new: Json) -> list[Json]:
    """Return the list ``value`` of field ``path`` with ``new`` at ``inner``: an item's number, then keys.

    ``value`` is in any of the field's forms (one path, a comma-separated text, a list). Raises NoItem.
    """
    items = _items(path, value)
    number, *keys = inner
    if not number.isdecimal() or int(number) >= len(items):
        raise _no_such(path, items, inner, new)
    index = int(number)
    if not keys:
        items[index] = new
        return items
    item = items[index]
    info = field_of(path)
    model = item_model(info) if info is not None else None
    if model is None or not isinstance(item, dict):
        where = f"{path}.{number}"
        raise NoItem(
            f"{where} is a single value without keys", ".".join((path, *inner)), f"{where}={shown(path, new)}"
        )
    if keys[0] not in model.model_fields:
        keys_of_item = tuple(model.model_fields)
        near = nearest(keys[0], keys_of_item)
        remedy = f"{path}.{number}.{near[0]}=…" if near else f"one of {', '.join(keys_of_item)}"
        raise NoItem(f"an item of {path} has no key '{keys[0]}'", ".".join((path, *inner)), remedy)
    put_at(item, keys, new)
    return items


def _items(path: str, value: Json) -> list[Json]:
    """Return a copy of the field's list, read from any of its forms; empty for what is no list."""
    info = field_of(path)
    assert info is not None
    if value is None:
        value = info.get_default(call_default_factory=True)
    for reader in info.metadata:
        if isinstance(reader, BeforeValidator):
            try:
                value = reader.func(value)  # type: ignore[call-arg, arg-type]
            except PydanticCustomError:  # the field's own check reports it
                break
    return copy.deepcopy(list(value)) if isinstance(value, (list, tuple)) else []


def _no_such(path: str, items: list[Json], inner: tuple[str, ...], new: Json) -> NoItem:
    number, *keys = inner
    rest = "".join(f".{key}" for key in keys)
    if not items:
        message = f"{path} has no item {number}: it is empty"
        return NoItem(message, ".".join((path, *inner)), f"give the list first: {path}=[…]")
    last = len(items) - 1
    which = f"0 to {last}" if last else "0 alone"
    listed = shown(path, [_name(item) for item in items], 80)
    if not number.isdecimal():
        message = f"{path} is a list: its items have numbers, {which}"
        key = "" if number.lstrip("-").isdigit() else f".{number}"
        return NoItem(message, ".".join((path, *inner)), f"{path}.0{key}{rest}={shown(number, new)}")
    message = f"{path} has no item {number}: it has {which}"
    return NoItem(message, listed, f"{path}.{last}{rest}={shown((keys or [path])[-1], new)}")


def _name(item: Json) -> Json:
    """Return an item in short: its path or name where it has one."""
    return (
        next((item[key] for key in ("path", "name") if key in item), item) if isinstance(item, dict) else item
    )
