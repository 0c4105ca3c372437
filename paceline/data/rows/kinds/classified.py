"""Texts and conversations with their classes: a name or number per row, or a list of them.

The text is ``text``, ``sentence``, ``content``, ``review`` or ``document``, a conversation ``messages`` or
``conversations``; the class is ``label``, ``labels``, ``class``, ``category``, ``target`` or ``intent``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.formats import Example, Shape, corrected
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.messages import says_something, turns_of_any
from paceline.data.rows.values import Cell, Row, RowError, as_text

TEXT, CONVERSATION = "classified", "classified_conversation"
_READ = ("text", "sentence", "content", "review", "document", "messages", "conversations")
_SAID = ("label", "labels", "class", "category", "target", "intent")


def detect_classified(rows: Sequence[Row], *, where: str, mapping: Mapping[str, str] | None = None) -> Shape:
    """Detect the shape of classified rows from the first of them.

    ``mapping`` maps ``text`` and ``label`` to names in the file. Raises DataError without text or label, with
    several of either, or if a mapped column is missing.
    """
    found = list(dict.fromkeys(name for row in rows for name in row))
    mapping = dict(mapping or {})
    seen = f"columns {', '.join(found) or 'none'}"
    hint = "columns: {text: X, label: Y} (next to path:), where X and Y are names in the file"
    # The user's mapping must name known columns that exist.
    wrong = [k for k in mapping if k not in ("text", "label")] + [
        v for v in mapping.values() if v not in found
    ]
    if wrong:
        what = f"columns: no such column ({', '.join(wrong)})"
        raise DataError(
            codes.DATA_FORMAT_CLASSES(what, where, seen, corrected(mapping, ("text", "label"), found) or hint)
        )
    columns = {}
    for name, known in (("text", _READ), ("label", _SAID)):
        # Exactly one column for each.
        some = (
            [mapping[name]]
            if name in mapping
            else [c for c in known if c in found and c not in mapping.values()]
        )
        if len(some) != 1:
            if not some and name == "text" and "tokens" in found:
                hint = "classes of single tokens are not supported; a class of the whole text is"
            what = f"the rows have no {name}" if not some else f"the {name} could be any of {', '.join(some)}"
            raise DataError(codes.DATA_FORMAT_CLASSES(what, where, seen, hint))
        columns[name] = some[0]
    turns = any(isinstance(row.get(columns["text"]), list) for row in rows)
    description = (
        f"the {'conversation' if turns else 'text'} is '{columns['text']}', its class '{columns['label']}'"
    )
    return Shape(CONVERSATION if turns else TEXT, columns, description)


def normalise_classified(row: Row, shape: Shape) -> Example:
    """Return the text or conversation, with ``labels`` and whether they were a list in ``facts``.

    Raises RowError.
    """
    read, key = shape.columns["text"], shape.columns["label"]
    value, label = row.get(read), row.get(key)
    if value is None:
        raise RowError("missing_column", f"no '{read}'")
    several = isinstance(label, list)
    if isinstance(label, list) and _is_vector(label):
        raise RowError("class_vector", f"'{key}' is {label!r}"[:99])
    labels = [_class(one, key) for one in (label if isinstance(label, list) else [label])]
    facts = json.dumps({"labels": labels, "several": several}, ensure_ascii=False)
    if shape.format == TEXT:
        text = as_text(value, read)
        if not text.strip():
            raise RowError("empty")
        return Example(text=text, facts=facts)
    turns = turns_of_any(value)
    if not any(says_something(turn) for turn in turns):
        raise RowError("empty")
    return Example(messages=tuple(turns), learn_from=len(turns), facts=facts)


def _is_vector(label: list[Cell]) -> bool:
    """Whether it is Transformers' multi-label form: a 0 or 1 for each class, not the classes."""
    flags = len(label) > 1 and all(one in (0.0, 1.0) for one in label)
    return flags and (
        all(isinstance(one, float) for one in label) or len({one == 1.0 for one in label}) < len(label)
    )


def _class(value: Cell, name: str) -> str | int:
    """Return a name, or a non-negative integer (also for a bool and for 1.0)."""
    if isinstance(value, str) and value.strip():
        return as_text(value.strip(), name)
    if isinstance(value, (bool, int, float)) and value == int(value) and value >= 0:
        return int(value)
    raise RowError("no_class", f"'{name}' is {value!r}"[:99])


class Classified(RowKind):
    """One document per row, without token labels, with its classes."""

    stored_name = "classified"
    words = "texts with their classes"
    expected = False
    learns_tokens = False
    classes = True
    conversations = frozenset({CONVERSATION})

    def detect(
        self, rows: Sequence[Row], *, where: str, requested: str, mapping: Mapping[str, str] | None
    ) -> Shape:
        return detect_classified(rows, where=where, mapping=mapping)

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        return (normalise_classified(row, shape),)

    def trained_tokens(self, train_on: str) -> str:
        return "all"


CLASSIFIED = Classified()
