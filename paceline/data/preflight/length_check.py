"""Check the effect of ``data.max_length`` before the start: pairs that become equal, refused rows, data sets
without rows left.

The rows are read without a tokenizer. Only rows that may be lost are tokenized, as in the preparation.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.security.resource_limits import SpentError, bounded_memory, bounded_time
from paceline.data import codes
from paceline.data.chat_template.conversation import Renderers
from paceline.data.preflight.chat_template import local_template
from paceline.data.preflight.check_sets import at_key, is_looked_into
from paceline.data.preflight.find_sets import DatasetHead, find_set, read_head, sections_of
from paceline.data.rows.examples import Reading, RowReader
from paceline.data.rows.formats import Example, Shape
from paceline.data.rows.row_errors import (
    ALWAYS_REFUSED,
    LENGTH_REASONS,
    Tally,
    left_out,
    refusal,
    refuses,
    tallies,
)
from paceline.data.rows.values import RowError

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection, Dataset
    from paceline.config.sections.model import ModelSection
    from paceline.data.prepare.tokenize import Setup
    from paceline.data.rows.values import RawRow

MOST_ROWS = 4096  # reading them takes a fraction of a second
_EQUAL = "same_answers"


@dataclass(frozen=True)
class Doubtful:
    """A data set with ``rows`` that may be lost, of the first ``read``; ``is_whole``: it has no more."""

    key: str
    section: Dataset
    shape: Shape
    rows: list[RawRow]
    read: int
    is_whole: bool


def doubtful_sets(data: DataSection, model: ModelSection, reading: Reading) -> Iterator[Doubtful]:
    """Yield the data sets with rows that ``data.max_length`` may refuse.

    Sets that cannot be read here quickly are left to the preparation.
    """
    # No token is shorter than a byte: bytes bound tokens from above
    room = data.max_length - _written_around(model)
    for key, section in sections_of(data):
        try:
            data_set = find_set(key, section)
            if is_looked_into(data_set, reading):
                yield from _doubtful(key, section, read_head(data_set, reading), data, reading, room)
        except DataError:
            continue  # reported with the data sets


def _doubtful(
    key: str, section: Dataset, head: DatasetHead, data: DataSection, reading: Reading, room: int
) -> Iterator[Doubtful]:
    too_long = data.on_too_long == "refuse"
    each = too_long or (reading.kind.group > 1 and data.on_bad_row == "refuse")
    rows = list(itertools.islice(head.rows, MOST_ROWS)) if each else head.head
    is_whole = len(rows) < MOST_ROWS if each else head.is_whole
    usable = [(row, examples) for row, examples in RowReader(head.shape, reading).usable(rows) if examples]
    # Nothing is left of the data where every prompt fills the length: so all rows are doubtful.
    if not (is_whole and all(len(examples[0].prompt.encode()) >= room for _, examples in usable)):
        lost = _is_long if too_long else _may_be_equal
        usable = [(row, examples) for row, examples in usable if each and lost(examples, room)]
    if usable:
        yield Doubtful(key, section, head.shape, [row for row, _ in usable], len(rows), is_whole)


def _written_around(model: ModelSection) -> int:
    """Return the bytes that the chat template writes around a question; 0 if unknown here."""
    template = local_template(model)
    if template is None:
        return 0
    question = Example(messages=({"role": "user", "content": ""},))
    try:
        with bounded_memory(), bounded_time(template.texts.values()):
            text = Renderers(dict(template.texts), template.tokens).of(question).text(question)
    except (RowError, SpentError, MemoryError):
        return 0
    return len(text.encode())


def _is_long(examples: Sequence[Example], length: int) -> bool:
    """Whether a document may have more than ``length`` tokens: no token is shorter than a byte, but a picture
    has no bytes here.
    """
    return any(example.images or len(_text(example).encode()) >= length for example in examples)


def _may_be_equal(examples: Sequence[Example], length: int) -> bool:
    """Whether the documents may have the same first ``length`` tokens, or differ by blanks alone."""
    same = len(
        {
            str(
                [
                    example.text.split(),
                    *((turn["role"], turn["content"].split()) for turn in example.messages),
                ]
            )
            for example in examples
        }
    )
    return same == 1 or len(os.path.commonprefix([_text(example) for example in examples]).encode()) >= length


def _text(example: Example) -> str:
    """Return roughly the text that a template writes for an example."""
    return example.text or json.dumps(
        [example.tools, example.documents, example.messages], ensure_ascii=False
    )


def lost_rows(setup: Setup, data: DataSection, data_sets: Sequence[Doubtful]) -> Iterator[Diagnostic]:
    """Tokenize doubtful rows as the preparation does; yield the errors that it would end with."""
    from paceline.data.prepare.tokenize import Chunk, ChunkRow, tokenise_chunk

    empty: list[tuple[Doubtful, dict[str, Tally]]] = []
    of_length = (_EQUAL, ALWAYS_REFUSED, *LENGTH_REASONS)
    for doubtful in data_sets:
        rows = [ChunkRow(number, row.where, row.value or {}) for number, row in enumerate(doubtful.rows)]
        result = tokenise_chunk(setup, Chunk(0, doubtful.shape, rows, len(rows), 0, []))
        lost = tallies((p.reason, p.where, p.detail) for p in result.skipped if p.reason in of_length)
        refused = {
            reason: t for reason, t in lost.items() if refuses(reason, data.on_bad_row, data.on_too_long)
        }
        for error in refusal(refused, doubtful.read, of="" if doubtful.is_whole else "the first "):
            yield at_key(doubtful.key, doubtful.section, error)
        if not refused and doubtful.is_whole and sum(t.count for t in lost.values()) == doubtful.read:
            empty.append((doubtful, lost))
    for key, sections in (("data.train", data.train), ("data.eval", data.eval or ())):
        of_key = [(doubtful, lost) for doubtful, lost in empty if doubtful.key == key]
        if of_key and len(of_key) == len(sections):
            read = sum(doubtful.read for doubtful, _ in of_key)
            yield codes.DATA_NO_USABLE_ROWS(
                "no row can be used", key, f"{read:,} rows read, all of them skipped", "the reasons follow"
            )
            for doubtful, lost in of_key:
                yield from (at_key(key, doubtful.section, error) for error in left_out(lost, doubtful.read))
