"""Other programs' arguments that are not Paceline keys, with their meaning in the import tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from paceline.config.import_export.argument_tables import steps, table
from paceline.config.import_export.decide_keys import SENTENCES
from paceline.config.schema import field_of
from paceline.core.json_types import Json, JsonObject, as_object

_PROGRAMS = {
    "trl": "TRL",
    "axolotl": "axolotl",
    "llamafactory": "LLaMA-Factory",
    "swift": "ms-swift",
    "transformers": "Transformers",
}
_KEEP, _DROP = ("keep", "write", "enable"), ("lose", "unsupported", "nothing")


@cache
def argument_of(name: str) -> tuple[str, str]:
    """Return (program, meaning) of another program's argument; empty texts if none has it.

    The meaning is our key, the reason why there is none, or empty.
    """
    for program, called in _PROGRAMS.items():
        meaning = _meanings(program).get(name)
        if meaning is not None:
            return called, meaning
    return "", ""


@cache
def _meanings(program: str) -> dict[str, str]:
    """Return argument → our key, the reason why there is none, or an empty text.

    A reason is given only if it is the table's only row for the argument and has no condition.
    """
    classes = as_object(table(program)["classes"])
    # A single word is too common to be told from a slip or another section's key
    arguments = {name: "" for options in classes.values() for name in as_object(options) if "_" in name}
    rows: dict[str, list[str]] = {}
    for verb, name, row, always in _rows(steps(program), always=True):
        says = (
            str(as_object(row).get("to" if verb in _KEEP else "says", ""))
            if isinstance(row, dict)
            else str(row)
        )
        if verb in _KEEP and field_of(says) is not None:
            rows.setdefault(name, []).insert(0, says)
        else:
            rows.setdefault(name, []).append(_sentence(says) if always and verb in _DROP else "")
    kept = {name: says[0] for name, says in rows.items() if len(says) == 1 or field_of(says[0]) is not None}
    return arguments | {name: says for name, says in kept.items() if says}


def _rows(listed: list[Json], *, always: bool) -> Iterator[tuple[str, str, Json, bool]]:
    """Yield (verb, argument, row, whether it holds without a condition) of the steps."""
    for step in map(as_object, listed):
        holds = always and "when" not in step and "each" not in step
        inner = step.get("step")
        yield from _rows(inner if isinstance(inner, list) else [], always=holds)
        for verb in (*_KEEP, *_DROP):
            rows = step.get(verb, {})
            shared = step.get("to" if verb in _KEEP else "says", "")
            named_rows: JsonObject = (
                rows if isinstance(rows, dict) else {str(n): shared for n in _listed(rows)}
            )
            yield from ((verb, name, row, holds) for name, row in named_rows.items())


def _listed(rows: Json) -> list[Json]:
    return rows if isinstance(rows, list) else []


def _sentence(text: str) -> str:
    """Return a reason with its sentences written out; empty if it quotes values of the file."""
    for name, sentence in SENTENCES.items():
        text = text.replace(f"${name}", sentence)
    return "" if "$" in text else text
