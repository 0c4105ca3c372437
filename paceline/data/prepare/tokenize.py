"""Open the rows of data sets in chunks, and tokenize them in this process or several.

A tokenized chunk is a pure function of (setup, chunk).
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.chat_template.encode import CostlyTemplateError, Encoded, Encoder
from paceline.data.images.expand import ImageWriter
from paceline.data.images.table import ImageBlock
from paceline.data.preflight.find_sets import LocatedDataset, read_head
from paceline.data.prepare.truncate import truncated
from paceline.data.random_keys import text_key
from paceline.data.rows.examples import Reading, RowReader, answers_in_a_row
from paceline.data.rows.formats import COLUMNS, Example, Shape
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.row_errors import Problem, Tally
from paceline.data.rows.values import Cell, RawRow, RowError
from paceline.data.token_table import DocumentBlock, encode_labels
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer
from paceline.models.special_tokens import SECOND
from paceline.plan.images.settings import ImageSettings

CHUNK_ROWS = 512


@dataclass(frozen=True)
class Setup:
    """How rows are tokenized; the same for all chunks. ``train_on``: as it applies to rows of their kind.

    ``images``: how pictures become tokens; None where rows have none.
    """

    tokenizer: TokenizerSpec
    reading: Reading
    max_length: int
    on_too_long: str
    truncation: str = "end"
    max_prompt_length: int | None = None
    images: ImageSettings | None = None

    @property
    def kind(self) -> RowKind:
        return self.reading.kind

    @property
    def train_on(self) -> str:
        return self.kind.trained_tokens(self.reading.train_on)

    @property
    def limit(self) -> int:
        """The maximum tokens of a document; in rollouts, of the prompt alone."""
        return (self.max_prompt_length if self.kind.answered else None) or self.max_length

    @property
    def find_answers(self) -> bool:
        """Whether the spans of answers are needed and the labels do not show them."""
        unlabelled = self.reading.last_answers or self.reading.completions or self.train_on == "all"
        return self.truncation == "ratio" and self.kind.learns_tokens and unlabelled


class ChunkRow(NamedTuple):
    """A row sent to a worker."""

    number: int
    where: str
    value: dict[str, Cell]


class Chunk(NamedTuple):
    """Rows of one data set.

    ``consumed``: bytes of the data set read after this chunk, ``read``: rows read for it.
    """

    dataset: int
    shape: Shape
    rows: list[ChunkRow]
    read: int
    consumed: int
    problems: list[Problem]


class ChunkResult(NamedTuple):
    """The result of a chunk: usable documents, skipped and truncated rows, and unread fields by name.

    ``in_a_row``: rows with several answers in a row. ``images``: the documents' pictures.
    """

    dataset: int
    block: DocumentBlock
    skipped: list[Problem]
    truncated: list[Problem]
    read: int
    consumed: int
    unread: dict[str, Tally]
    in_a_row: Tally
    images: ImageBlock


@lru_cache(maxsize=2)
def _encoder(
    tokenizer: TokenizerSpec, train_on: str, find_answers: bool, images: ImageSettings | None
) -> Encoder:
    loaded = open_tokenizer(tokenizer)
    writer = None if images is None else ImageWriter(images, loaded)
    return Encoder(loaded, train_on, find_answers=find_answers, images=writer)


def tokenise_chunk(setup: Setup, chunk: Chunk) -> ChunkResult:
    """Tokenize one chunk."""
    skipped, shorter, repeated = list(chunk.problems), [], Tally()
    kept: list[tuple[ChunkRow, tuple[Example, ...]]] = []
    # Rows to examples; then all examples are rendered and tokenized in one batch.
    reader = RowReader(chunk.shape, setup.reading)
    for row in chunk.rows:
        examples = reader.read(row.value, row.where)
        if isinstance(examples, Problem):
            skipped.append(examples)
        else:
            kept.append((row, examples))
    documents: list[tuple[ChunkRow, Example, Encoded]] = []
    flat = [(row, example) for row, examples in kept for example in examples]
    try:
        encoder = _encoder(setup.tokenizer, setup.train_on, setup.find_answers, setup.images)
        encoded = iter(encode_for(setup.kind, encoder)([example for _, example in flat]))
    except CostlyTemplateError as error:  # further rows would take as long: discard the chunk
        skipped = [Problem(error.reason, flat[error.number][0].where, error.detail)]
        block, none = _block(chunk.dataset, [], setup.kind.columns), ImageBlock()
        return ChunkResult(chunk.dataset, block, skipped, [], chunk.read, chunk.consumed, {}, Tally(), none)
    for row, examples in kept:
        # A row is kept or skipped with all of its documents.
        results = list(itertools.islice(encoded, len(examples)))
        uncut = [result for result in results if isinstance(result, Encoded)]
        cut = _cut(encoder, examples, uncut, setup)
        pairs = zip(results, cut if len(uncut) == len(results) else results, strict=True)
        problem = next(
            (p for whole, short in pairs if (p := _unusable(whole, short, row.where, setup))), None
        )
        if problem is None and encoder.images is not None:
            problem = _picture_lost(uncut, cut, encoder.images.marks.token_id, row.where)
        if problem is None and setup.kind.same([document.input_ids for document in cut]):
            why = "as the template writes them"
            if not setup.kind.same([document.input_ids for document in uncut]):
                why = f"in the {setup.max_length} tokens that are kept: increase data.max_length"
            problem = Problem("same_answers", row.where, why)
        if problem is not None:
            skipped.append(problem)
            continue
        longest = max(len(document.input_ids) for document in uncut)
        if longest > setup.limit:
            shorter.append(Problem("too_long", row.where, f"{longest} tokens"))
        learns = setup.kind.learns_tokens and not setup.kind.answered
        if learns and answers_in_a_row(examples):
            repeated.add(row.where)
        reader.count(dict.fromkeys(name for document in uncut for name in document.left_out), row.where)
        documents += zip(itertools.repeat(row), examples, cut, strict=False)
    block = _block(chunk.dataset, documents, setup.kind.columns)
    images = ImageBlock.of((example.images, encoded.images) for _, example, encoded in documents)
    counts = chunk.read, chunk.consumed
    return ChunkResult(chunk.dataset, block, skipped, shorter, *counts, reader.unread, repeated, images)


def _picture_lost(
    whole: Sequence[Encoded], cut: Sequence[Encoded], token_id: int, where: str
) -> Problem | None:
    """Return why a row's tokens are not those of its pictures, or None: truncation never cuts into one."""
    for before, after in zip(whole, cut, strict=True):
        features, tokens = sum(before.images), int(np.count_nonzero(before.input_ids == token_id))
        if tokens > features:
            return Problem("image_mark", where, f"{tokens} tokens of pictures that have {features}")
        if int(np.count_nonzero(after.input_ids == token_id)) < features:
            long = f"{len(before.input_ids)} tokens, {features} of them of pictures"
            return Problem(
                "image_cut", where, long if tokens == features else "a picture after the last answer"
            )
    return None


def _cut(
    encoder: Encoder, examples: Sequence[Example], documents: Sequence[Encoded], setup: Setup
) -> list[Encoded]:
    """Truncate a row's documents to ``Setup.limit`` tokens each; a text without template keeps the
    tokenizer's special tokens.
    """
    cut, kind = truncated(documents, setup.limit, setup.truncation), setup.kind
    if kind.learns_tokens or kind.answered or len(documents) < len(examples):
        return cut
    return [
        short if example.messages or short is whole else encoder.shortened(example, setup.limit)
        for example, whole, short in zip(examples, documents, cut, strict=True)
    ]


def encode_for(kind: RowKind, encoder: Encoder) -> Callable[[Sequence[Example]], list[Encoded | RowError]]:
    """Return the encoding of a kind of rows: as prompts, with labels, or as plain text."""
    if kind.answered:
        return encoder.encode_prompts
    return encoder.encode if kind.learns_tokens else encoder.encode_whole


def _unusable(
    encoded: Encoded | RowError, cut: Encoded | RowError, where: str, setup: Setup
) -> Problem | None:
    """Return why a row gives no document, or None.

    A document's first token is never predicted, so not a label.
    """
    if isinstance(encoded, RowError) or isinstance(cut, RowError):
        error = encoded if isinstance(encoded, RowError) else cut
        assert isinstance(error, RowError)
        return Problem(error.reason, where, error.detail, error.also)
    kind, length = setup.kind, len(encoded.input_ids)
    learns = kind.learns_tokens and not kind.answered
    cannot_be_cut = length > setup.limit and setup.on_too_long != "truncate"
    reasons = {
        # a prompt must leave room for the answer
        "prompt_too_long": kind.answered and (len(cut.input_ids) >= setup.max_length or cannot_be_cut),
        "no_labels": learns and not encoded.labelled[1:].any(),
        # Too long: refused, or truncated if a label remains.
        "too_long": not kind.answered and cannot_be_cut,
        "answer_cut_off": learns and length > setup.limit and not cut.labelled[1:].any(),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return None if reason is None else Problem(reason, where, f"{length} tokens")


def _block(
    dataset: int, documents: list[tuple[ChunkRow, Example, Encoded]], columns: Sequence[str]
) -> DocumentBlock:
    coded = [encode_labels(e.input_ids, e.labelled) for _, _, e in documents]
    return DocumentBlock(
        coded=np.concatenate(coded) if coded else np.empty(0, np.int32),
        lengths=np.array([len(c) for c in coded], np.int32),
        num_labels=np.array([int(e.labelled[1:].sum()) for _, _, e in documents], np.int32),
        keys=np.array([text_key(example.prompt) for _, example, _ in documents], np.uint64),
        dataset=np.full(len(documents), dataset, np.int32),
        row=np.array([row.number for row, _, _ in documents], np.int64),
        facts=[example.facts for _, example, _ in documents],
        columns={
            n: np.array(
                [e.second if n == SECOND else x.values.get(n, 0.0) for _, x, e in documents], np.float64
            )
            for n in columns
        },
    )


def tokenise(setup: Setup, chunks: Iterable[Chunk], num_proc: int) -> Iterator[ChunkResult]:
    """Yield results in the order of the chunks, from ``num_proc`` processes (1: this one)."""
    if num_proc <= 1:
        yield from (tokenise_chunk(setup, chunk) for chunk in chunks)
        return

    # spawn: this process may hold threads (tokenizers, torch), and forking those can hang
    pool = ProcessPoolExecutor(num_proc, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = (pool.submit(tokenise_chunk, setup, chunk) for chunk in chunks)
        # Two chunks a process: none waits while the next one is read; no more lie in memory
        waiting = deque(itertools.islice(futures, 2 * num_proc))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(itertools.islice(futures, 1))
            yield result
    except BrokenProcessPool as exc:
        raise DataError(codes.DATA_WORKER_DIED("data.num_proc", str(exc))) from exc
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class OpenSet:
    """A data set whose format was detected; ``notes``: its assumptions."""

    shape: Shape
    chunks: Iterator[Chunk]
    notes: tuple[Diagnostic, ...]


def open_set(number: int, data_set: LocatedDataset, reading: Reading) -> OpenSet:
    """Detect the format of a data set and open it. Raises DataError if it has no rows or no known format."""
    looked = read_head(data_set, reading)
    chunks = _chunks(number, looked.shape, looked.rows)
    return OpenSet(looked.shape, chunks, tuple(_notes(data_set, looked.shape, reading.kind.words)))


def _notes(data_set: LocatedDataset, shape: Shape, words: str) -> Iterator[Diagnostic]:
    path = data_set.section.path
    if data_set.section.format == "auto":
        name = shape.format if shape.format in COLUMNS else words
        yield codes.DATA_FORMAT(
            f"the rows are read as {name}" + (f": {shape.note}" if shape.note else ""),
            path,
            severity=Severity.NOTE,
        )
    if data_set.located.note:
        yield codes.DATA_FILES_LEFT_OUT(data_set.located.note, path, severity=Severity.NOTE)
    if data_set.section.max_rows is not None:
        yield codes.DATA_MAX_ROWS(path, max_rows=data_set.section.max_rows)


def _chunks(number: int, shape: Shape, rows: Iterator[RawRow]) -> Iterator[Chunk]:
    numbered = enumerate(rows)
    while block := list(itertools.islice(numbered, CHUNK_ROWS)):
        usable = [ChunkRow(n, r.where, r.value) for n, r in block if r.value is not None]
        problems = [Problem(r.reason, r.where, r.detail) for _, r in block if r.value is None]
        yield Chunk(number, shape, usable, len(block), block[-1][1].consumed, problems)
