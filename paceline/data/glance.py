"""Report which of the first rows the preparation would refuse."""

from __future__ import annotations

from paceline.core.diagnostics import Diagnostic
from paceline.data.examples import Reading, RowReader
from paceline.data.looking import LOOKED_AT, DatasetHead
from paceline.data.problems import CONVERTED_AWAY, LENGTH_REASONS, Problem, Tally, refusal


def refused_rows(looked: DatasetHead, reading: Reading) -> list[Diagnostic]:
    """Return the errors of the first rows by reason, for a config that refuses bad rows."""
    reader, refused = RowReader(looked.shape, reading), dict[str, Tally]()
    for row in looked.head:
        bad = (
            Problem(row.reason, row.where, row.detail)
            if row.value is None
            else reader.read(row.value, row.where)
        )
        for one in bad.each() if isinstance(bad, Problem) else ():
            if one.reason not in (*LENGTH_REASONS, CONVERTED_AWAY):
                refused.setdefault(one.reason, Tally()).add(one.where, one.detail)
    first = "the first " if len(looked.head) >= LOOKED_AT else ""
    return list(refusal(refused, len(looked.head), of=first))
