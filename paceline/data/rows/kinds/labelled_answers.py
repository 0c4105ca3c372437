"""Labelled answers: a prompt, an answer, and whether it is good (TRL's unpaired preferences).

Columns are ``completion`` (or ``response``, ``output``, ``answer``: a text, one turn or a list of turns) and
``label`` (LLaMA-Factory's ``kto_tag``), and a prompt as in preference pairs. Without a column for the answer
it is the last turn of ``messages`` or ``conversations``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.data import codes
from paceline.data.rows.formats import Example, Shape
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.kinds.preference_pairs import (
    CONVERSATION,
    after_prompt,
    detect_answers,
    prompt_of,
    system_of,
)
from paceline.data.rows.messages import says_something, turns_or_text
from paceline.data.rows.values import Cell, Row, RowError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ANSWER, LABEL = "completion", "label"
_OTHER_NAMES = {ANSWER: ("response", "output", "answer"), LABEL: ("kto_tag",)}
_TURNS = ("messages", "conversations")
_TRUTH = {True: 1.0, False: 0.0, "true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}  # True is 1, False 0


def detect_labelled(
    rows: Sequence[Row], *, where: str, requested: str = "auto", mapping: Mapping[str, str] | None = None
) -> Shape:
    """Detect the shape of labelled answers from the first rows.

    Raises DataError without prompt, answer or label, or with several prompts.
    """
    found = {name for row in rows for name in row}
    mapping = dict(mapping or {})
    for name, others in _OTHER_NAMES.items():
        other = next((o for o in others if o in found), None)
        if name not in found and name not in mapping and other is not None:
            mapping[name] = other
    spoken = (
        ANSWER not in mapping and ANSWER not in found and bool(found & {*_TURNS, *map(mapping.get, _TURNS)})
    )
    wrong = codes.DATA_FORMAT_LABELLED(where)
    needed = (LABEL,) if spoken else (ANSWER, LABEL)
    beside = ("input", "system")
    return detect_answers(rows, needed, beside, wrong, requested=requested, mapping=mapping, spoken=spoken)


def normalise_labelled(row: Row, shape: Shape) -> Example:
    """Return the conversation, with loss on the turns after the prompt, and ``label`` 1 or 0.

    Raises RowError.
    """
    columns = shape.columns
    prompt = prompt_of(row, columns) or []
    if ANSWER in columns:
        answer = turns_or_text(row.get(columns[ANSWER]), columns[ANSWER], "assistant")
        prompt, (answer,) = after_prompt(prompt, [answer])
    else:
        prompt, answer = prompt[:-1], prompt[-1:]
    replies = [turn for turn in answer if turn["role"] == "assistant"]
    if not replies or not all(says_something(turn) for turn in replies):
        raise RowError("no_answer", f"'{columns.get(ANSWER, 'the last turn')}' is empty")
    if not any(turn["content"].strip() for turn in prompt if turn["role"] == "user"):
        raise RowError("empty", "the prompt is empty")
    prompt = system_of(row, columns) + prompt
    values = {LABEL: _label(row.get(columns[LABEL]), columns[LABEL])}
    return Example(messages=(*prompt, *answer), learn_from=len(prompt), values=values)


def _label(value: Cell, name: str) -> float:
    """Return 1 or 0 for a bool, 1 or 0, or the text of one (as in CSV)."""
    if value is None:
        raise RowError("missing_column", f"no '{name}'")
    known = value.strip().lower() if isinstance(value, str) else value
    if not isinstance(known, (bool, int, float, str)) or known not in _TRUTH:
        raise RowError("bad_label", f"'{name}' is {value!r}"[:99])
    return _TRUTH[known]


class Labelled(RowKind):
    """One document per row with loss on the answer only, and its label."""

    stored_name = "labelled"
    words = "labelled answers"
    expected = False
    columns = (LABEL,)
    conversations = frozenset({CONVERSATION})

    def detect(
        self, rows: Sequence[Row], *, where: str, requested: str, mapping: Mapping[str, str] | None
    ) -> Shape:
        return detect_labelled(rows, where=where, requested=requested, mapping=mapping)

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        return (normalise_labelled(row, shape),)

    def unlearnable(
        self, columns: Mapping[str, Sequence[float] | NDArray[np.float64]], where: str
    ) -> Iterator[Diagnostic]:
        """data.one_label"""
        labels = columns[LABEL]
        good = sum(1 for label in labels if label)
        if len(labels) and good in (0, len(labels)):
            found = f"{good:,} rows with label: true, {len(labels) - good:,} with label: false"
            hint = f"add rows with label: {'false' if good else 'true'}"
            yield codes.DATA_ONE_LABEL(where, found, hint=hint)

    def trained_tokens(self, train_on: str) -> str:
        return "assistant"


LABELLED = Labelled()
