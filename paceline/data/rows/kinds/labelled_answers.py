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
from paceline.data.rows.formats import Example, Shape, column_names, system_of
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.kinds.preference_pairs import (
    CONVERSATION,
    after_prompt,
    check_answer,
    check_question,
    detect_answers,
    prompt_of,
)
from paceline.data.rows.messages import turns_or_text
from paceline.data.rows.values import Cell, Row, RowError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ANSWER, LABEL = "completion", "label"
_OTHER_NAMES = {ANSWER: ("response", "output", "answer"), LABEL: ("kto_tag",)}
_TURNS = ("messages", "conversations")
_TRUTH = {True: 1.0, False: 0.0, "true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}  # True is 1, False 0


def _label(value: Cell, name: str) -> float:
    """Return 1 or 0 for a bool, 1 or 0, or the text of one (as in CSV)."""
    if value is None:
        raise RowError("missing_column", f"no '{name}'")
    label = value.strip().lower() if isinstance(value, str) else value
    if not isinstance(label, (bool, int, float, str)) or label not in _TRUTH:
        raise RowError("bad_label", f"'{name}' is {value!r}"[:99])
    return _TRUTH[label]


class Labelled(RowKind):
    """One document per row with loss on the answer only, and its label."""

    stored_name = "labelled"
    words = "labelled answers"
    expected = False
    columns = (LABEL,)
    conversations = frozenset({CONVERSATION})

    def detect(
        self,
        rows: Sequence[Row],
        *,
        where: str,
        requested: str = "auto",
        mapping: Mapping[str, str] | None = None,
    ) -> Shape:
        names = set(column_names(rows))
        mapping = dict(mapping or {})
        for name, others in _OTHER_NAMES.items():
            other = next((o for o in others if o in names), None)
            if name not in names and name not in mapping and other is not None:
                mapping[name] = other
        turns = names & {*_TURNS, *map(mapping.get, _TURNS)}
        # Without a column for it the answer is the last turn
        spoken = ANSWER not in mapping and ANSWER not in names and bool(turns)
        return detect_answers(
            rows,
            (LABEL,) if spoken else (ANSWER, LABEL),
            ("input", "system"),
            codes.DATA_FORMAT_LABELLED(where),
            requested=requested,
            mapping=mapping,
            spoken=spoken,
        )

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
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
        check_answer(answer, f"'{columns.get(ANSWER, 'the last turn')}' is empty")
        check_question(prompt)
        prompt = system_of(row, columns) + prompt
        values = {LABEL: _label(row.get(columns[LABEL]), columns[LABEL])}
        return (Example(messages=(*prompt, *answer), learn_from=len(prompt), values=values),)

    def unlearnable(
        self, columns: Mapping[str, Sequence[float] | NDArray[np.float64]], where: str
    ) -> Iterator[Diagnostic]:
        """Warn (``data.one_label``) if all answers have the same label."""
        labels = columns[LABEL]
        good = sum(1 for label in labels if label)
        if len(labels) and good in (0, len(labels)):
            yield codes.DATA_ONE_LABEL(
                where,
                f"{good:,} rows with label: true, {len(labels) - good:,} with label: false",
                hint=f"add rows with label: {'false' if good else 'true'}",
            )

    def trained_tokens(self, train_on: str) -> str:
        return "assistant"


LABELLED = Labelled()
