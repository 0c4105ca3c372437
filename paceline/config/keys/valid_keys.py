"""Which keys are valid, and when two written values are equal."""

from __future__ import annotations

from paceline.config.keys.aliases import ALIASES, SECTION_ALIASES
from paceline.config.keys.without_effect_here import RECOGNISED
from paceline.config.schema import SECTIONS
from paceline.config.yaml_text.scalars import parse_number
from paceline.core.json_types import Json


def known_names(section: str) -> tuple[str, ...]:
    """Return every valid key of a section, or of the top level for ""."""
    if section:
        names = list(SECTIONS[section].model_fields)
        names += [key.partition(".")[2] for key in SECTION_ALIASES if key.startswith(f"{section}.")]
        names += [
            key
            for key, alias in ALIASES.items()
            if section == "training" or alias.to.startswith(f"{section}.")
        ]
    else:
        names = [*SECTIONS, *(name for model in SECTIONS.values() for name in model.model_fields), *ALIASES]
    if section in ("", "training"):
        names += RECOGNISED
    return tuple(dict.fromkeys(name for name in names if "." not in name))


def same(one: Json, other: Json) -> bool:
    """Whether two written values are equal (``4``, ``4.0`` and ``"4"`` are)."""
    return _canonical(one) == _canonical(other)


def _canonical(value: Json) -> Json:
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
