"""Suggest what to write instead of an unknown key: by meaning, by section, by spelling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from paceline.config.nearest import nearest
from paceline.config.schema import SECTIONS, homes_of, sections
from paceline.config.spelling import known_names
from paceline.config.synonyms import INSIDE, SYNONYMS


def suggestion(name: str, where: str, known: Sequence[str]) -> str | None:
    """Return the hint for an unknown key ``name`` in section ``where``, or None.

    ``where`` is dotted, empty for the top level; ``known`` are its keys.
    """
    # The right name in the wrong place or spelling
    plain = name.lower().replace("-", "_")
    if where and plain in SECTIONS:
        return (
            f"{plain}: is a section of its own: put it at the left margin, next to {where.partition('.')[0]}:"
        )
    same = next((one for one in known if one.lower() == plain and one != name), None)
    if same is not None:
        return f"did you mean '{same}'?"
    # Another program's name for a key, or a key of another section
    meant = INSIDE.get(where, {}).get(plain)
    if meant is None:
        homes = [home for home in _homes(plain) if home != where]
        if homes:
            return f"'{plain}' belongs under {' or '.join(f'{home}:' for home in homes)}"
        meant = SYNONYMS.get(plain)
    if meant is not None:
        return meant if " " in meant else f"did you mean '{_seen_from(meant, where)}'?"
    # A misspelling of a key of this section, else of any section
    near = [one for one in nearest(name, known) if one.lower() != plain or one != name]
    if not near:
        near = [
            _seen_from(f"{home}.{one}", where)
            for one in nearest(name, _every_name(), most_edits=1)
            for home in _homes(one)
        ][:2]
    quoted = [f"'{one}'" for one in near]
    return f"did you mean {' or '.join(quoted)}?" if near else None


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
