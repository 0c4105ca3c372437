"""Report which of the first rows the preparation would refuse."""

from __future__ import annotations

from paceline.core.diagnostics import Diagnostic
from paceline.data.examples import Reading, RowReader
from paceline.data.looking import LOOKED_AT, DatasetHead
from paceline.data.problems import CONVERTED_AWAY, LENGTH_REASONS, Problem, Tally, left_out, refusal


def refused_rows(looked: DatasetHead, reading: Reading) -> list[Diagnostic]:
    """Return the errors of the first rows by reason, for a config that refuses bad rows."""
    refused, _ = _bad_rows(looked, reading)
    first = "the first " if len(looked.head) >= LOOKED_AT else ""
    return list(refusal(refused, len(looked.head), of=first))


def skipped_rows(looked: DatasetHead, reading: Reading) -> tuple[Diagnostic, ...]:
    """Return why the rows cannot be used where none can, for a config that skips bad rows; else nothing."""
    skipped, usable = _bad_rows(looked, reading)
    return () if usable or len(looked.head) >= LOOKED_AT else left_out(skipped, len(looked.head))


def _bad_rows(looked: DatasetHead, reading: Reading) -> tuple[dict[str, Tally], int]:
    """Return the first rows that cannot be used, by reason, and how many can."""
    reader, found, usable = RowReader(looked.shape, reading), dict[str, Tally](), 0
    for row in looked.head:
        bad = (
            Problem(row.reason, row.where, row.detail)
            if row.value is None
            else reader.read(row.value, row.where)
        )
        usable += not isinstance(bad, Problem)
        for one in bad.each() if isinstance(bad, Problem) else ():
            if one.reason not in (*LENGTH_REASONS, CONVERTED_AWAY):
                found.setdefault(one.reason, Tally()).add(one.where, one.detail)
    return found, usable
