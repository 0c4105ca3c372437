"""Field types that accept common spellings: ``"2e-5"`` as a number, ``8.0`` as an int, ``off`` as a boolean.

NaN and infinity are refused.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from paceline.config.yaml_text.scalars import parse_number
from paceline.core.json_types import Json, JsonObject
from paceline.core.plugins.tables import registered

Read = TypeVar("Read")  # what a validator makes of a value
#: The largest int that fits everywhere it is used (tensors, seeds, clocks): signed 64 bits.
MOST = 2**63 - 1
_LONGEST_NAME = 255  # NAME_MAX of Linux's file systems
_TRUTH = {
    "true": True,
    "yes": True,
    "on": True,
    "y": True,
    "false": False,
    "no": False,
    "off": False,
    "n": False,
}


class Section(BaseModel):
    """Base class of all sections: frozen, refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=False, protected_namespaces=(), defer_build=True
    )


def misfit(expected: str) -> PydanticCustomError:
    """Return the error for an invalid value; ``expected`` follows the field's name."""
    return PydanticCustomError("paceline", "{expected}", {"expected": expected})


def to_number(value: Json) -> float:
    """Convert a number or its text to a finite float. Raises PydanticCustomError otherwise."""
    if isinstance(value, str):
        parsed = parse_number(value.strip())
        value = value if parsed is None else parsed
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise misfit("must be a number")
    try:
        number = float(value)
    except OverflowError:  # an int of more than 308 digits
        number = math.inf
    if not math.isfinite(number):
        raise misfit("must be a finite number, not NaN or infinity")
    return number


def to_int(value: Json) -> int:
    """Convert ``8``, ``8.0``, ``2e8`` or their text to an int. Raises PydanticCustomError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool):
        try:
            number = to_number(value)
        except PydanticCustomError:
            raise misfit("must be a whole number") from None
        if number != int(number):
            raise misfit("must be a whole number")
        value = int(number)
    if abs(value) > MOST:
        raise misfit(f"must be a whole number of at most {MOST:,}")
    return int(value)


def to_bool(value: Json) -> bool:
    """Convert true/false, yes/no, on/off or 1/0 to a bool. Raises PydanticCustomError otherwise."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in _TRUTH:
        return _TRUTH[value.strip().lower()]
    raise misfit("must be true or false")


def to_text(value: Json) -> str:
    """Convert a text or a number to str. Raises PydanticCustomError for lists, mappings and booleans."""
    if isinstance(value, str):
        if "\0" in value:
            raise misfit("holds a NUL character, which no name, path or word has")
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise misfit("must be a text")


def to_path(value: Json) -> str:
    """Convert to a text that is a valid path: no name in it exceeds 255 bytes.

    Raises PydanticCustomError otherwise.
    """
    text = to_text(value)
    if any(len(name.encode("utf-8", "replace")) > _LONGEST_NAME for name in text.split("/")):
        raise misfit(f"must be a path, and no name in one is longer than {_LONGEST_NAME} bytes")
    return text


def to_mapping(value: Json) -> JsonObject:
    """Accept a mapping, or its JSON text as Transformers does. Raises PydanticCustomError otherwise."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            raise misfit("must be a mapping, and this text is not the JSON of one") from None
    if isinstance(value, dict):
        if not all_finite(value):
            raise misfit("holds NaN or infinity")
        return value
    raise misfit("must be a mapping (key: value lines, indented)")


def all_finite(value: Json) -> bool:
    """Whether ``value`` contains no NaN or infinity at any depth (JSON cannot represent them)."""
    if isinstance(value, dict):
        return all(all_finite(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(all_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def to_texts(value: Json) -> tuple[str, ...]:
    """Convert a list, or one comma-separated text, to a tuple of texts.

    Raises PydanticCustomError otherwise.
    """
    if isinstance(value, str):
        return tuple(part.strip() for part in to_text(value).split(",") if part.strip())
    if isinstance(value, (list, tuple)):
        return tuple(to_text(item) for item in value)
    raise misfit("must be a list of texts")


def optional(convert: Callable[[Json], Read]) -> Callable[[Json], Read | None]:
    """Return ``convert`` extended to keep None."""
    return lambda value: None if value is None else convert(value)


_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True)
class OneOf:
    """Convert a text to one of ``choices``, ignoring case.

    - ``false``: the word meant by a YAML 1.1 ``no``, which is read as False
    - ``known``: words that are accepted too, for a rule to refuse with the reason
    - ``own``: also accept ``module:attr`` unchanged, and a name that a package registers in the entry-point
      group ``paceline.OWN`` as the ``module:attr`` that it gives
    """

    choices: tuple[str, ...]
    false: str | None = None
    known: tuple[str, ...] = ()
    own: str = ""

    def __call__(self, value: Json) -> str:
        if value is False and self.false is not None:
            return self.false
        text = value.strip().lower() if isinstance(value, str) else value
        if text in (*self.choices, *self.known):
            return str(text)
        if self.own and isinstance(value, str):
            parts = (value.strip(), *registered(self.own, value.strip()))
            if len(parts) < 3 and _OWN.fullmatch(parts[-1]):
                return parts[-1]
        # By prefix, initials and likeness: words are shorter than keys
        near = _nearest(str(text), self.choices)
        words = (
            f"{', '.join(self.choices[:6])}, … ({len(self.choices)} words)"
            if (len(self.choices) > 12)
            else ", ".join(self.choices)
        )
        words += ", or your own as module:SPEC" if self.own else ""
        raise misfit(f"must be one of {words}" + (f"; did you mean {near}?" if near else ""))


def _nearest(word: str, choices: tuple[str, ...]) -> str | None:
    stems = (word, word[:-1] if len(word) > 3 else "")  # a letter too many: the first word that starts so
    longer = [choice for stem in stems for choice in choices if stem and choice.startswith(stem)]
    initials = [choice for choice in choices if "".join(part[0] for part in choice.split("_")) == word]
    shorter = sorted((choice for choice in choices if word.startswith(f"{choice}_")), key=len, reverse=True)
    almost, like = (difflib.get_close_matches(word, choices, n=1, cutoff=least) for least in (0.85, 0.6))
    return next(iter([*longer, *initials, *almost, *shorter, *like]), None)


def Word(
    *choices: str, false: str | None = None, known: tuple[str, ...] = (), own: str = ""
) -> BeforeValidator:  # noqa: N802 - it reads as a type
    """Return the validator for ``Annotated[str, Word("a", "b")]``; the arguments are ``OneOf``'s."""
    return BeforeValidator(OneOf(choices, false, known, own))


Int = Annotated[int, BeforeValidator(to_int)]
Float = Annotated[float, BeforeValidator(to_number)]
Bool = Annotated[bool, BeforeValidator(to_bool)]
Text = Annotated[str, BeforeValidator(to_text)]
Mapping = Annotated[dict[str, Any], BeforeValidator(to_mapping)]
Texts = Annotated[tuple[str, ...], BeforeValidator(to_texts)]
OptInt = Annotated[int | None, BeforeValidator(optional(to_int))]
OptFloat = Annotated[float | None, BeforeValidator(optional(to_number))]
OptBool = Annotated[bool | None, BeforeValidator(optional(to_bool))]
OptPath = Annotated[str | None, BeforeValidator(optional(to_path))]
OptText = Annotated[str | None, BeforeValidator(optional(to_text))]
OptMapping = Annotated[dict[str, Any] | None, BeforeValidator(optional(to_mapping))]
