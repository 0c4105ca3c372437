"""Suggest what to write instead of an unknown key or word, or of a spelling of a number (4k, 5%, 2**10)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from paceline.config.keys.nearest import nearest
from paceline.config.keys.valid_keys import known_names
from paceline.config.schema import SECTIONS, field_of, homes_of, sections
from paceline.config.yaml_text.lookalike_characters import plain
from paceline.config.yaml_text.read_file import read_table
from paceline.config.yaml_text.scalars import parse_number
from paceline.core.json_types import as_object


@dataclass(frozen=True)
class Suggestion:
    """``hint``: what to write instead; ``path``: the key that is meant, dotted; None if several may be."""

    hint: str
    path: str | None = None


def suggestion(name: str, where: str, valid_names: Sequence[str]) -> Suggestion | None:
    """Return what an unknown key ``name`` in section ``where`` most likely means, or None.

    ``where`` is dotted, empty for the top level; ``valid_names`` are its keys.
    """
    # The right name in the wrong place or spelling
    plain = name.lower().replace("-", "_")
    if where and plain in SECTIONS:
        home = where.partition(".")[0]
        return Suggestion(
            f"{plain}: is a section of its own: put it at the left margin, next to {home}:", plain
        )
    same = next(
        (candidate for candidate in valid_names if candidate.lower() == plain and candidate != name), None
    )
    if same is not None:
        return _meant([_inside(where, same)], where)
    # Another program's name for a key, or a key of another section
    meant = synonyms(where).get(plain) if where else None
    if meant is None:
        homes = [home for home in _homes(plain) if home != where]
        if homes and plain not in synonyms():
            return Suggestion(
                f"'{plain}' belongs under {' or '.join(f'{home}:' for home in homes)}",
                f"{homes[0]}.{plain}" if len(homes) == 1 else None,
            )
        meant = synonyms().get(plain)
    if meant is not None:
        return Suggestion(meant) if " " in meant else _meant([meant], where)
    # After our own names: a key of ours is never explained as another program's
    if sentence := _of_other_program(name):
        return Suggestion(sentence)
    # A misspelling of a key of this section, else of any section
    near = [
        _inside(where, candidate)
        for candidate in nearest(name, valid_names)
        if candidate.lower() != plain or candidate != name
    ]
    if not near:
        near = [
            f"{home}.{candidate}" if home else candidate
            for candidate in nearest(name, _every_name(), most_edits=1)
            for home in _homes(candidate)
        ][:2]
    return _meant(near, where) if near else None


def _of_other_program(name: str) -> str:
    """Return what an argument of another program means here; empty if none has it."""
    from paceline.config.import_export.other_names import (
        argument_of,  # with the tables, which few configs need
    )

    program, meaning = argument_of(name)
    if not program:
        return ""
    if field_of(meaning) is not None:
        return f"{program}'s name for '{meaning}'"
    reason = f": {meaning}" if meaning else ""
    return f"an argument of {program}{reason}; `paceline config import` says what becomes of all in its file"


def _meant(paths: Sequence[str], where: str) -> Suggestion:
    quoted = [f"'{_seen_from(path, where)}'" for path in paths]
    return Suggestion(f"did you mean {' or '.join(quoted)}?", paths[0] if len(paths) == 1 else None)


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _seen_from(path: str, where: str) -> str:
    """Return a key's path as it is written inside ``where``; in a file without sections its last part."""
    home, _, name = path.rpartition(".")
    return name if home == where or (not where and home in SECTIONS) else path


@lru_cache(maxsize=4096)
def _homes(name: str) -> tuple[str, ...]:
    return tuple(homes_of(name))


@lru_cache(maxsize=1)
def _every_name() -> tuple[str, ...]:
    """Return every key of any section, nested ones included."""
    names = [name for section in ("", *SECTIONS) for name in known_names(section)]
    names += [name for _, model in sections() for name in model.model_fields]
    return tuple(name for name in dict.fromkeys(names) if _homes(name))


@cache
def synonyms(section: str = "") -> dict[str, str]:
    """Return name → key or sentence: names inside ``section``, or without one names that mean it anywhere."""
    table = read_table("synonyms")
    rows = as_object(as_object(table["inside"]).get(section)) if section else as_object(table["anywhere"])
    return {str(name): meant for meant, names in rows.items() if isinstance(names, list) for name in names}


def value_meant(path: str, written: str, values: Sequence[str]) -> str:
    """Return the one of ``values`` that a text means; a sentence if it means none of them; or an empty text.

    Ignores other programs' prefixes and suffixes: ``deepspeed_zero-3`` is zero3.
    """
    plain = re.sub(r"[^a-z0-9]", "", written.lower())
    bare = re.sub(r"^(torch|pytorch|deepspeed|ds)(?=.)|strategy|offload(cpu|nvme)?", "", plain)
    bare = re.sub(r"(zero)?stage", "zero", bare)
    meanings = {value.replace("_", ""): value for value in values}
    for meant, names in as_object(as_object(read_table("synonyms")["values"])[path]).items():
        meanings |= {str(name): meant for name in names} if isinstance(names, list) else {}
    near = nearest(bare, values)
    return meanings.get(plain) or meanings.get(bare) or (near[0] if len(near) == 1 else "")


_UNSIGNED = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBER = rf"[-+]?{_UNSIGNED}"
_THOUSANDS = {"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "b": 1e9, "B": 1e9, "g": 1e9, "G": 1e9}
_SECONDS = {
    "s": 1,
    "sec": 1,
    "secs": 1,
    "seconds": 1,
    "m": 60,
    "min": 60,
    "mins": 60,
    "minutes": 60,
    "h": 3600,
    "hour": 3600,
    "hours": 3600,
    "d": 86400,
}
_MOST_DIGITS = 15


def number_meant(key: str, written: str) -> str | None:
    """Return what to write for a text that should be a number; None if no meaning is likely."""
    text = plain(written).strip().rstrip(",;").strip()
    if len(text) > 40:
        return None
    if (
        "timeout" in key
        and (duration := re.fullmatch(rf"({_UNSIGNED})\s*([a-z]+)", text))
        and duration[2] in _SECONDS
    ):
        return _spelt(float(duration[1]) * _SECONDS[duration[2]])
    if parse_number(text) is not None and text != written:
        return text
    return next(
        (meant for shape, means in _SHAPES if (m := re.fullmatch(shape, text)) and (meant := means(m))), None
    )


def _shortened(match: re.Match[str]) -> str:
    meant = _spelt(float(match[1]) * _THOUSANDS[match[2]])
    binary = _spelt(float(match[1]) * 1024)
    return f"{meant} (or {binary}, if multiples of 1024 were meant)" if match[2] in "kK" else meant


def _power(match: re.Match[str]) -> str | None:
    base, exponent = float(match[1]), int(match[2])
    return _spelt(base**exponent) if abs(exponent) <= 64 and base else None


_SHAPES: tuple[tuple[str, Callable[[re.Match[str]], str | None]], ...] = (
    (rf"({_NUMBER})\s*%", lambda found: _spelt(float(found[1]) / 100)),
    (rf"({_NUMBER})\s*([kKmMbBgG])", _shortened),
    (r"[-+]?\d{1,3}(?:[ ,'_]\d{3})+(?:\.\d+)?", lambda found: re.sub(r"[ ,'_]", "", found[0])),
    (r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", lambda found: found[0].replace(",", ".")),
    (rf"({_NUMBER})\s*(?:\*\*|\^)\s*([-+]?\d+)", _power),
    (r"(\d+(?:\.\d+)?)\s*[x*×]\s*10\s*(?:\*\*|\^)\s*([-+]?\d+)", lambda found: f"{found[1]}e{int(found[2])}"),
    (rf"({_NUMBER})\s*[x*×]\s*({_NUMBER})", lambda found: _spelt(float(found[1]) * float(found[2]))),
    (
        rf"({_UNSIGNED})\s*/\s*({_UNSIGNED})",
        lambda found: _spelt(float(found[1]) / float(found[2])) if float(found[2]) else None,
    ),
    (r"(\d+(?:\.\d+)?) *([eE]) *([-+]?) *(\d+)", lambda found: f"{found[1]}e{found[3]}{found[4]}"),
    (rf"({_NUMBER})\s*(?:f|L|steps?|epochs?|rows?|tokens?)", lambda found: found[1]),
)


def _spelt(number: float) -> str:
    return str(int(number)) if number == int(number) and abs(number) < 10**_MOST_DIGITS else f"{number:.12g}"
