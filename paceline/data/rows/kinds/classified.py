"""Texts, pairs of texts and conversations with their classes: a name or number per row, or a list of them.

The text is ``text``, ``sentence``, ``content``, ``review`` or ``document``, a conversation ``messages`` or
``conversations``; the class is ``label``, ``labels``, ``class``, ``category``, ``target`` or ``intent``. Two
texts are columns of ``TEXT_PAIRS``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.formats import (
    CLASSIFIED_TEXT,
    IMAGE_COLUMNS,
    Example,
    Shape,
    check_mapping,
    column_names,
    listed,
)
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.messages import has_meaning, turns_of_any
from paceline.data.rows.values import Cell, Row, RowError, as_text
from paceline.models.special_tokens import SECOND

CONVERSATION = "classified_conversation"
_READ = ("text", "sentence", "content", "review", "document", "messages", "conversations")
#: As GLUE's and SuperGLUE's sets name them
TEXT_PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "passage"),
    ("question", "sentence"),
    ("question1", "question2"),
)
_NOTES = ("label", "labels", "class", "category", "target", "intent")


def _is_vector(label: list[Cell]) -> bool:
    """Whether a label is Transformers' multi-label vector (a 0 or 1 for each class), not a list of
    classes."""
    flags = [value == 1.0 for value in label if value in (0.0, 1.0)]
    repeated = len(set(flags)) < len(flags) or all(isinstance(value, float) for value in label)
    return len(flags) == len(label) > 1 and repeated


def _class(value: Cell, name: str) -> str | int:
    """Return a name, or a non-negative integer (also for a bool and for 1.0)."""
    if isinstance(value, str) and value.strip():
        return as_text(value.strip(), name)
    # Tables write whole numbers as 1.0
    if isinstance(value, (bool, int, float)) and value == int(value) and value >= 0:
        return int(value)
    raise RowError("no_class", f"'{name}' is {value!r}"[:99])


class Classified(RowKind):
    """One document per row, without token labels, with its classes."""

    stored_name = "classified"
    words = "texts with their classes"
    columns = (SECOND,)
    expected = False
    learns_tokens = False
    classes = True
    conversations = frozenset({CONVERSATION})

    def detect(
        self,
        rows: Sequence[Row],
        *,
        where: str,
        requested: str = "auto",
        mapping: Mapping[str, str] | None = None,
    ) -> Shape:
        """Detect the shape of classified rows from the first of them.

        ``mapping`` maps ``text``, ``text_pair`` and ``label`` to names in the file. Raises DataError without
        text or label, with several of either, or if a mapped column is missing.
        """
        names, mapping = column_names(rows), dict(mapping or {})
        remedy = "columns: {text: X, label: Y} (next to path:), where X and Y are names in the file"
        wrong = codes.DATA_FORMAT_CLASSES("", where, listed(names), remedy)
        check_mapping(mapping, ("text", "text_pair", "label", *IMAGE_COLUMNS), names, wrong)
        pairs = [pair for pair in TEXT_PAIRS if {*pair} <= {*names} - {*mapping.values()}]
        if pairs and "text" not in mapping:
            if len(pairs) > 1:
                several = " or ".join(" and ".join(pair) for pair in pairs)
                raise DataError(replace(wrong, what=f"the two texts could be {several}"))
            mapping |= dict(zip(("text", "text_pair"), pairs[0], strict=True))
        columns = {n: mapping[n] for n in ("text_pair", *IMAGE_COLUMNS) if n in mapping}
        for name, usual in (("text", _READ), ("label", _NOTES)):
            free = [column for column in usual if column in names and column not in mapping.values()]
            likely = [mapping[name]] if name in mapping else free
            if len(likely) > 1:
                raise DataError(replace(wrong, what=f"the {name} could be any of {', '.join(likely)}"))
            if not likely and name == "text" and "tokens" in names:
                wrong = replace(
                    wrong, hint="classes of single tokens are not supported; a class of the whole text is"
                )
            if not likely:
                raise DataError(replace(wrong, what=f"the rows have no {name}"))
            columns[name] = likely[0]
        turns = any(isinstance(row.get(columns["text"]), list) for row in rows)
        note = f"the {'conversation' if turns else 'text'} is '{columns['text']}'"
        if second := columns.get("text_pair"):
            if turns:
                raise DataError(replace(wrong, what="a conversation has no second text"))
            note = f"the two texts are '{columns['text']}' and '{second}'"
        return Shape(
            CONVERSATION if turns else CLASSIFIED_TEXT, columns, f"{note}, its class '{columns['label']}'"
        )

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        """Return the text or conversation, with ``labels`` and whether they were a list in ``facts``.

        Raises RowError.
        """
        read, key = shape.columns["text"], shape.columns["label"]
        value, label = row.get(read), row.get(key)
        if value is None:
            raise RowError("missing_column", f"no '{read}'")
        if isinstance(label, list) and _is_vector(label):
            raise RowError("class_vector", f"'{key}' is {label!r}"[:99])
        labels = [_class(item, key) for item in (label if isinstance(label, list) else [label])]
        facts = json.dumps({"labels": labels, "several": isinstance(label, list)}, ensure_ascii=False)
        if shape.format != CLASSIFIED_TEXT:
            turns = turns_of_any(value)
            if not any(has_meaning(turn) for turn in turns):
                raise RowError("empty")
            return (Example(messages=tuple(turns), learn_from=len(turns), facts=facts),)
        text, pair = as_text(value, read), ""
        if second := shape.columns.get("text_pair"):
            pair = as_text(row.get(second, ""), second)
        if not text.strip() or (second and not pair.strip()):
            raise RowError("empty")
        return (Example(text=text, pair=pair, facts=facts),)

    def trained_tokens(self, train_on: str) -> str:
        return "all"


CLASSIFIED = Classified()
