"""Which keys may be written, and when two written values mean the same."""

from __future__ import annotations

from typing import Any

from paceline.config.aliases import ALIASES, SECTION_ALIASES
from paceline.config.recognised import RECOGNISED
from paceline.config.scalars import parse_number
from paceline.config.schema import SECTIONS


def known_names(section: str) -> tuple[str, ...]:
    """Every key that may be written in a section (or at the top level, for "")."""
    if section:
        names = list(SECTIONS[section].model_fields)
        names += [key.partition(".")[2] for key in SECTION_ALIASES if key.startswith(f"{section}.")]
        names += [key for key, alias in ALIASES.items() if section == "training" or alias.to.startswith(f"{section}.")]
    else:
        names = [*SECTIONS, *(name for model in SECTIONS.values() for name in model.model_fields), *ALIASES]
    if section in ("", "training"):
        names += RECOGNISED
    return tuple(dict.fromkeys(name for name in names if "." not in name))


def same(one: Any, other: Any) -> bool:
    """Whether two written values mean the same (``4``, ``4.0`` and ``"4"`` do)."""
    return _canonical(one) == _canonical(other)


def _canonical(value: Any) -> Any:
    if isinstance(value, str):
        number = parse_number(value.strip())
        return value if number is None else ("number", float(number))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ("number", float(value))
    if isinstance(value, (list, tuple)):
        return tuple(_canonical(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((key, _canonical(item)) for key, item in value.items()))
    return value
