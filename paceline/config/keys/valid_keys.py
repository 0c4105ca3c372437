"""Valid keys, keys without effect here, and equality of values.

``keys/recognised.toml`` has the keys that set nothing. ``fine``: values that agree with what Paceline does;
they pass with a note. Any other value is refused (``refuse=True``) or gets a warning.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config.keys.aliases import ALIASES, SECTION_ALIASES
from paceline.config.schema import SECTIONS
from paceline.config.yaml_text.read_file import read_table
from paceline.config.yaml_text.scalars import parse_number
from paceline.core.json_types import Json, JsonObject, as_object


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


def same(value: Json, other: Json) -> bool:
    """Whether two written values are equal (``4``, ``4.0`` and ``"4"`` are)."""
    return _canonical(value) == _canonical(other)


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


@dataclass(frozen=True)
class Recognised:
    """The message for a key, and its ``fine`` values, which agree with Paceline's behaviour."""

    says: str
    fine: tuple[Json, ...] = ()
    refuse: bool = False
    known: tuple[str, ...] = ()  # these values get a warning; any other is invalid and refused
    any_value: bool = False

    def accepts(self, value: Json) -> bool:
        """Whether this value agrees with what Paceline does."""
        if self.any_value or value is None or value in ({}, [], ""):
            return True
        # YAML 1.2 leaves yes, no, on and off as texts
        word = value.strip().lower() if isinstance(value, str) else value
        word = (
            {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(word, word)
            if isinstance(word, str)
            else word
        )
        return any(word == good and isinstance(word, bool) == isinstance(good, bool) for good in self.fine)

    def refuses(self, value: Json) -> bool:
        """Whether this value is an error."""
        return self.refuse or bool(self.known and str(value).strip().lower() not in self.known)


def _listed(value: Json) -> tuple[Json, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _keys(table: str) -> dict[str, Recognised]:
    recognised = dict[str, Recognised]()
    for name, entry in as_object(read_table("recognised")[table]).items():
        row: JsonObject = as_object(entry)
        verb = next(verb for verb in ("note", "warn", "refuse") if verb in row)
        recognised[name] = Recognised(
            str(row[verb]),
            _listed(row.get("fine", [])),
            verb == "refuse",
            tuple(map(str, _listed(row.get("known", [])))),
            any_value=verb == "note",
        )
    return recognised


#: Its level O0 switches `fp16: true` off
APEX_LEVEL = "training.fp16_opt_level"
#: Name as written → what happens instead
RECOGNISED = _keys("keys")
#: The same by section, of the program whose settings the section holds: peft's, Transformers'
RECOGNISED_IN: dict[str, dict[str, Recognised]] = {
    name: _keys(name) for name in ("lora", "generation", "data")
}
