"""A row of any shape to the examples it gives: one, or the two halves of a preference pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.data.fields import FieldReader
from paceline.data.formats import Example, RowError, Shape, normalise
from paceline.data.pairs import normalise_pair
from paceline.data.problems import Problem, Tally
from paceline.data.prompts import KEEP_ALL, normalise_prompt


@dataclass(frozen=True)
class Reading:
    """What rows are read for. ``pairs``: two answers each; ``prompts``: the model answers itself; ``train_on`` as in the config."""

    train_on: str = "assistant"
    pairs: bool = False
    prompts: bool = False


class RowReader:
    """Rows of one shape to examples; ``unread`` counts the fields that nobody reads."""

    def __init__(self, shape: Shape, reading: Reading) -> None:
        self._shape, self._reading = shape, reading
        self._fields = FieldReader(
            shape, keeps_rows=shape.format in KEEP_ALL, all_learnt=reading.train_on == "all" and not reading.pairs
        )

    @property
    def unread(self) -> dict[str, Tally]:
        return self._fields.unread

    def read(self, row: Mapping[str, Any], where: str) -> tuple[Example, ...] | Problem:
        """The examples of a row, or why there are none (first what would be lost of it, all of it at once)."""
        lost = self._fields.look(row, where)
        if lost:
            (reason, detail), *also = lost
            return Problem(reason, where, detail, tuple(also))
        try:
            if self._reading.prompts:
                return (normalise_prompt(row, self._shape),)
            return normalise_pair(row, self._shape) if self._reading.pairs else (normalise(row, self._shape),)
        except RowError as error:
            return Problem(error.reason, where, error.detail)
