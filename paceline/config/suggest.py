"""What to write instead of a key that does not exist: by meaning, by its home, by its spelling; None where nothing is likely."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from paceline.config.nearest import nearest
from paceline.config.schema import SECTIONS, homes_of
from paceline.config.spelling import known_names
from paceline.config.synonyms import INSIDE, SYNONYMS


def suggestion(name: str, where: str, known: Sequence[str]) -> str | None:
    """The hint for key ``name`` inside section ``where`` (dotted; empty: the top level), which may hold ``known``."""
    plain = name.lower().replace("-", "_")
    if where and plain in SECTIONS:
        return f"{plain}: is a section of its own: at the left margin, beside {where.partition('.')[0]}:"
    same = next((one for one in known if one.lower() == plain and one != name), None)
    if same is not None:
        return f"did you mean '{same}'?"
    meant = INSIDE.get(where, {}).get(plain)
    if meant is None:
        homes = [home for home in _homes(plain) if home != where]
        if homes:
            return f"'{plain}' belongs under {' or '.join(f'{home}:' for home in homes)}"
        meant = SYNONYMS.get(plain)
    if meant is not None:
        return meant if " " in meant else f"did you mean '{_seen_from(meant, where)}'?"
    near = [one for one in nearest(name, known) if one.lower() != plain or one != name]
    if not near:
        near = [_seen_from(f"{home}.{one}", where) for one in nearest(name, _every_name()) for home in _homes(one)][:2]
    quoted = [f"'{one}'" for one in near]
    return f"did you mean {' or '.join(quoted)}?" if near else None


def _seen_from(path: str, where: str) -> str:
    """A key's path as it is written inside ``where``; a file without sections takes the last word."""
    home, _, name = path.rpartition(".")
    return name if home == where or (not where and home in SECTIONS) else path


@lru_cache(maxsize=4096)
def _homes(name: str) -> tuple[str, ...]:
    return tuple(homes_of(name))


@lru_cache(maxsize=1)
def _every_name() -> tuple[str, ...]:
    """Every key that has a home in some section."""
    names = (name for section in ("", *SECTIONS) for name in known_names(section))
    return tuple(name for name in dict.fromkeys(names) if _homes(name))
