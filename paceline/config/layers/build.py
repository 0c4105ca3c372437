"""Build a Config from the merged values, reporting every invalid value with its place.

The reliable keys of an invalid config can still be checked without false findings.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paceline.config import codes
from paceline.config.keys.nearest import nearest
from paceline.config.keys.suggest import number_meant
from paceline.config.layers.merge import Merged
from paceline.config.schema import SECTIONS, Config, field_of, homes_of, item_model, nested_model, words_of
from paceline.config.sections.types import Section
from paceline.config.source import DEFAULTS, Entry, Source, shown
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject, as_object, put_at

_LIMITS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
}


def build(merged: Merged) -> tuple[Config, list[Diagnostic]]:
    """Return the Config and the diagnostics of invalid values.

    Invalid fields get their defaults, so that rules can still check the others.
    """
    problems: list[Diagnostic] = []
    sections: dict[str, Section | None] = {}
    trees = _trees(merged, problems)
    # Validate each section; drop invalid keys and retry, as a validator may report only some of them at first
    for name, model in SECTIONS.items():
        tree = trees.get(name)
        if name == "lora" and tree is None:
            sections[name] = None
            continue
        tree = tree or {}
        # Errors of a validator of the whole section appear once its keys are right
        for _ in range(3):
            try:
                sections[name] = model.model_validate(tree)
                break
            except ValidationError as exc:
                wrong = exc.errors()
                problems += [_misfit(name, error, merged) for error in wrong]
                # Longest first: an inner key is dropped before the mapping around it
                for path in sorted(
                    {_innermost(tree, error["loc"]) for error in wrong}, key=len, reverse=True
                ):
                    tree = _without(tree, path)
        else:
            sections[name] = model()
    return Config.model_construct(None, **sections), problems


def _innermost(tree: Mapping[str, Json], loc: Sequence[int | str]) -> tuple[str, ...]:
    """Return the deepest given key on the path ``loc``; for a list item the key of the list."""
    path: list[str] = []
    inner: Json = tree
    for part in loc:
        if not isinstance(inner, dict) or not isinstance(part, str) or part not in inner:
            break
        path.append(part)
        inner = inner[part]
    return tuple(path)


def _without(tree: JsonObject, path: Sequence[str]) -> JsonObject:
    """Return ``tree`` without one key.

    Its neighbours keep their values, so that rules see no defaults there.
    """
    if not path:
        return tree
    if len(path) == 1:
        return {key: value for key, value in tree.items() if key != path[0]}
    return {**tree, path[0]: _without(as_object(tree[path[0]]), path[1:])}


def _trees(merged: Merged, problems: list[Diagnostic]) -> dict[str, JsonObject]:
    # Nest the dotted paths; lora: null turns adapters off and conflicts with its keys in the same layer
    trees: dict[str, JsonObject] = {}
    lora = merged.values.get("lora", "unset")
    for path, value in merged.values.items():
        section, *rest = path.split(".")
        if not rest:
            if value is not None:
                trees.setdefault(section, {})
            continue
        # It is of every data set: load spreads it over them
        if path == "data.max_rows":
            continue
        if section == "lora" and lora is None:
            if merged.winners[path].source.layer == merged.winners["lora"].source.layer and value is not None:
                problems.append(_full_and_adapter(merged, path))
            continue
        # An empty key asks for no adapter
        if section == "lora" and value is None and section not in trees and lora == "unset":
            continue
        put_at(trees.setdefault(section, {}), rest, value)
    return trees


def _full_and_adapter(merged: Merged, path: str) -> Diagnostic:
    entry, full = merged.winners[path], merged.winners["lora"]
    code = codes.PEFT_QUANT_FULL if path == "lora.quantization_bit" else codes.CONFIG_LORA_OFF
    return code(
        f"{entry.source.text or path} configures adapters, but {full.source.text} requests full training",
        where=entry.source.place(),
        found=f"{shown(path, entry.value)}, and {full.source.text} at {full.source.place()}",
        hint="set finetuning_type: lora, or remove the adapter settings",
    )


def _misfit(section: str, error: ErrorDetails, merged: Merged) -> Diagnostic:
    # The place: the entry that set the key, and the line of the list item inside its value
    loc = [str(part) for part in error["loc"]]
    path, entry = _owner(section, loc, merged.winners)
    where = entry.source.place() if entry else _place_inside(path, str(error["msg"]), merged.winners)
    inner = ".".join(loc[len(path.split(".")) - 1 :])
    if entry is not None and entry.source.file:
        line = next((entry.lines[key] for key in _line_keys(inner) if key in entry.lines), None)
        where = f"{entry.source.file}:{line}" if line else where
    full = f"{path}.{inner}".strip(".")
    if full in merged.inner:  # a key inside a value may be set by itself
        where = merged.inner[full].place()
    # The message, by the type of pydantic's error
    if error["type"] == "extra_forbidden":
        return _unknown_inside(path, full, loc[-1], where)
    if error["type"] == "missing":
        return codes.CONFIG_VALUE(
            f"{full} is missing", where=where, found=shown(path, error["input"]), hint=f"{loc[-1]}: …"
        )
    value = shown(full, error["input"])
    if error["input"] is None:
        message, value = f"{full} has no value", "null (nothing after the colon)"
        return codes.CONFIG_TYPE(message, where, value, _example(path))
    if error["type"] == "paceline":
        expected = str(error["ctx"]["expected"])
        code = codes.CONFIG_VALUE if "one of" in expected else codes.CONFIG_TYPE
        return code(f"{full} {expected}", where, value, _instead(path, loc[-1], error["input"], expected))
    if error["type"] in _LIMITS:
        limit = _LIMITS[error["type"]].format(**error["ctx"])
        return codes.CONFIG_VALUE(f"{full} {limit}", where, value, _example(path))
    message = str(error["msg"]).removeprefix("Value error, ")
    return codes.CONFIG_TYPE(f"{full}: {message[0].lower()}{message[1:]}", where, value, _example(path))


def _instead(path: str, key: str, value: Json, expected: str) -> str:
    """Return what to write instead of an invalid value."""
    if "one of" in expected:
        return f"use one of these values for {key}"
    meant = number_meant(key, value) if "number" in expected and isinstance(value, str) else None
    return f"{key}: {meant}" if meant and meant != value else _example(path)


def _owner(section: str, loc: list[str], winners: Mapping[str, Entry]) -> tuple[str, Entry | None]:
    """Return the longest prefix of ``loc`` that an entry set, and that entry."""
    for size in range(len(loc), 0, -1):
        path = ".".join([section, *loc[:size]])
        if path in winners:
            return path, winners[path]
    return ".".join([section, *loc[:1]]), None


def _place_inside(path: str, message: str, winners: Mapping[str, Entry]) -> str:
    """Return the place of the key in a section that a message names first, else of any that is set there."""
    inside = {key.rpartition(".")[2]: entry for key, entry in winners.items() if key.startswith(f"{path}.")}
    keys = sorted(inside, key=lambda name: message.find(name) % (len(message) + 1))
    return inside[keys[0]].source.place() if keys else path


def _line_keys(inner: str) -> list[str]:
    """Return the keys under which an inner path may have a line number.

    These are its prefixes, longest first, and the path without the list index that a shorthand added.
    """
    parts = inner.split(".")
    keys = [".".join(parts[:size]) for size in range(len(parts), 0, -1)]
    return keys + ([".".join(parts[1:])] if parts and parts[0].isdigit() and len(parts) > 1 else [])


def _unknown_inside(path: str, full: str, key: str, where: str) -> Diagnostic:
    """Report an unknown key inside an item of the list at ``path``, or inside a section of an item."""
    info = field_of(path)
    model = item_model(info) if info is not None else None
    listed = "the keys listed in docs/reference/config.md"
    valid_keys = tuple(model.model_fields) if model is not None else (listed,)
    near = nearest(key, valid_keys)
    # A key may be right and only stand in the wrong place
    homes = [home for home in homes_of(key) if home != path]
    elsewhere = f"; '{key}' is a key of {' or '.join(f'{home}:' for home in homes)}" if homes else ""
    remedy = f"did you mean '{near[0]}'?" if near else f"one of {', '.join(valid_keys)}{elsewhere}"
    return codes.CONFIG_UNKNOWN_KEY(
        f"unknown key '{key}' in an item of {path}", where=where, found=full, hint=remedy
    )


def _example(path: str) -> str:
    info = field_of(path)
    if info is None:
        return "see docs/reference/config.md"
    name = path.rsplit(".", 1)[-1]
    default = info.get_default(call_default_factory=False)
    if nested_model(info) is not None or default is None or default == () or default == {}:
        description = str(info.description).rstrip(".")
        return (
            f"{name}: …, or remove the line"
            f" ({description[0].lower() if description[1:2].islower() else description[0]}{description[1:]})"
        )
    return (
        f"{name}: {shown(path, list(default) if isinstance(default, tuple) else default)} (the default), or"
        " remove the line"
    )


_KEY = "model.trust_remote_code"


def without_code(config: Config, provenance: Mapping[str, Source]) -> tuple[Config, list[Diagnostic]]:
    """Turn trust_remote_code off, with a warning, if the model is made from scratch or has no revision.

    No remote code runs then: a model that needs its code is refused when its config is read. For a folder, or
    a revision that is not a pin, the rule ``sec.trust_remote_code`` decides.
    """
    model = config.model
    if not model.trust_remote_code or model.revision is not None:
        return config, []
    if model.name_or_path is None and model.config:
        why, remedy = (
            "a model created from scratch has no code of its own",
            "trust_remote_code: false, or remove the line",
        )
    elif model.name_or_path and not Path(model.name_or_path).expanduser().exists():
        why = "code from the hub runs only from a pinned commit, and most models need none"
        remedy = (
            "remove the line; if the model needs its own code, set revision to the 40-digit commit"
            " that you have reviewed"
        )
    else:
        return config, []
    where = provenance[_KEY].place() if _KEY in provenance else _KEY
    off = config.model_copy(update={"model": model.model_copy(update={"trust_remote_code": False})})
    return off, [codes.SEC_NO_REMOTE_CODE(where, "trust_remote_code: true", why=why, hint=remedy)]


#: In place of a section: a line outside all sections may have been meant for any of them.
ANYWHERE = "*"


def unreliable_keys(
    problems: Sequence[Diagnostic],
    provenance: Mapping[str, Source],
    file: str,
    top: Mapping[str, int],
    meant: frozenset[str] = frozenset(),
    files: Mapping[str, str] | None = None,
) -> frozenset[str]:
    """Return the keys that are given and wrong, and the sections that have an unknown key.

    An unknown key may be a misspelling of any other key of its section. ``top``: top-level keys of ``file`` →
    line, from 1; ``meant``: places of unknown keys with a single possible meaning, read as that key.
    ``files``: names of other programs' files → the config key of each, in doubt if the file is wrong.
    """
    keys: dict[str, set[str]] = {}
    for key, source in provenance.items():
        if source.layer != DEFAULTS:
            keys.setdefault(source.place(), set()).add(key)
    starts = sorted((line, name) for name, line in top.items())
    keys_in_doubt: set[str] = set()
    for problem in problems:
        if problem.code == codes.CONFIG_UNKNOWN_KEY.name and problem.where in meant:
            continue
        for location in problem.where.split(" and "):
            if file_key := (files or {}).get(PurePath(location.rpartition(":")[0]).name):
                keys_in_doubt.add(file_key)
                continue
            there = keys.get(location, set())
            # Several keys stand in one line of the file: the problem names its own.
            keys_in_doubt |= {
                key for key in there if re.search(rf"\b{re.escape(key)}\b", problem.what)
            } or there
            if location not in keys or problem.code == codes.CONFIG_UNKNOWN_KEY.name:
                keys_in_doubt.add(_section(location, file, starts))
    return frozenset(keys_in_doubt)


def _section(location: str, file: str, starts: Sequence[tuple[int, str]]) -> str:
    """Return the section that contains a place, or ``ANYWHERE``."""
    name, _, line = location.rpartition(":")
    if name == file and line.isdigit():
        # Behind every name at that line: the highest code point
        before = bisect_right(starts, (int(line), "\U0010ffff")) - 1
        section = starts[before][1] if before >= 0 else ""
    else:
        match = re.match(r"(?:command line |environment PACELINE_)?([A-Za-z]+)(?:\.|__)", location)
        section = match[1].lower() if match else ""
    return section if section in SECTIONS else ANYWHERE


def is_reliable(doubt: frozenset[str], *needed: str) -> bool:
    """Whether none of these keys and sections is doubted, nor anything inside or around them."""
    return not any(
        f"{doubtful}.".startswith(f"{need}.") or f"{need}.".startswith(f"{doubtful}.")
        for doubtful in doubt
        for need in needed
    )


def certain_findings(
    rules: Callable[[Config], Iterable[Diagnostic]], config: Config, doubt: Iterable[str]
) -> tuple[Diagnostic, ...]:
    """Return the findings of ``rules`` in ``config`` that hold for any intended value of the keys in
    ``doubt``.

    ``config`` has a default in place of each invalid value, and a finding may be about that default alone.
    For a key that takes words, the rules run with each word. For any other key, findings about it are left
    out; they return once the value is right.
    """
    findings = tuple(rules(config))
    # A finding stands if it is there for every word that may have been meant
    for key in doubt:
        field = field_of(key)
        words = words_of(field) if field else ()
        if field and not words:
            name = re.compile(rf"\b{re.escape(key.rpartition('.')[2])}\b")
            findings = tuple(d for d in findings if not name.search(f"{d.what} {d.found}"))
        section, *path = key.split(".")
        for word in words if findings else ():
            other = config.model_copy(update={section: _with(getattr(config, section), path, word)})
            again = {(d.code, d.where) for d in rules(other)}
            findings = tuple(d for d in findings if (d.code, d.where) in again)
    return findings


def _with(section: Section | None, path: Sequence[str], value: bool | str) -> Section | None:
    """Return ``section`` with ``value`` at ``path`` inside it; unchanged if the path does not exist."""
    if section is None:
        return None
    name, *below = path
    inner = _with(getattr(section, name), below, value) if below else value
    return section.model_copy(update={name: inner})
