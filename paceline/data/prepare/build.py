"""Build one prepared data set: read, tokenize, write, split, publish. The caller holds the lock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.json_types import JsonObject
from paceline.data import codes
from paceline.data.dataset_store import EVAL, TOKENIZER, TOKENS, TRAIN, Store, save_index
from paceline.data.images.table import ImageTableWriter
from paceline.data.preflight.find_sets import LocatedDataset, collect
from paceline.data.prepare.choose_template import settle_template, stop_tokens
from paceline.data.prepare.tokenize import Chunk, ChunkResult, OpenSet, Setup, open_set, tokenise
from paceline.data.random_keys import hash_values, stream_key
from paceline.data.rows.examples import is_harmless
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.row_errors import (
    ALWAYS_REFUSED,
    PrepareCounts,
    Tally,
    fields_unread,
    in_a_row,
    left_out,
    refusal,
    refuses,
)
from paceline.data.sources.readers import total_bytes
from paceline.data.token_table import TableWriter, TokenTable, starts_of
from paceline.data.tokenizer.load import open_tokenizer, pad_token_id, vocab_size

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection


_BYTES_A_PROCESS = 16_000_000  # minimum text per process: starting one takes seconds
_BYTES_WITH_PICTURES = 200_000  # the same where rows name pictures, of which each takes a millisecond


def build(
    store: Store,
    key: str,
    setup: Setup,
    train: list[LocatedDataset],
    evaluation: list[LocatedDataset],
    data: DataSection,
    *,
    seed: int,
    report: Report,
) -> None:
    """Prepare and publish the data set ``key``. Raises DataError, and then leaves nothing behind."""
    sets = [*train, *evaluation]
    opened = collect(partial(open_set, number, one, setup.reading) for number, one in enumerate(sets))
    tokenizer = open_tokenizer(setup.tokenizer)
    setup, notes = settle_template(setup, tokenizer, {o.shape.format for o in opened})
    notes = [note for o in opened for note in o.notes] + notes
    with store.staged(key) as stage:
        pictures = ImageTableWriter(stage) if setup.images is not None else None
        tally = _write_tokens(stage / TOKENS, setup, sets, opened, data, report, pictures, len(train))
        for data_set, unread in zip(sets, tally.unread, strict=True):
            notes += fields_unread(unread, data_set.section.path)
        for data_set, answers in zip(sets, tally.in_a_row, strict=True):
            notes += in_a_row(answers, data_set.section.path, f"{tally.counts.rows_read:,}")
        report(PrepareProgress("write", tally.counts.rows_read, 1.0, tokens=tally.counts.tokens))
        notes += _write_indices(
            stage, tally, len(train), bool(evaluation), data.validation_split, seed, setup.kind
        )
        tokenizer.save_pretrained(str(stage / TOKENIZER))
        meta: JsonObject = {
            "vocab_size": vocab_size(tokenizer),
            "pad_token_id": pad_token_id(tokenizer),
            "special_tokens": [tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id],
            "stop_token_ids": stop_tokens(setup, tokenizer),
            "longest": tally.longest,
            "max_token_id": tally.max_token_id,
            "group": setup.kind.group,
            "counts": tally.counts.to_json(),
            "notes": [note.to_json() for note in [*notes, *tally.counts.diagnostics()]],
            "data_sets": [
                {"path": s.section.path, "format": o.shape.format, "rows": n}
                for s, o, n in zip(sets, opened, tally.documents, strict=True)
            ],
        }
        if pictures is not None:
            meta["pictures"] = {"count": pictures.count, **pictures.digests()}
        store.publish(stage, key, meta)


@dataclass
class _Tally:
    counts: PrepareCounts = field(default_factory=PrepareCounts)
    refused: dict[str, Tally] = field(default_factory=dict)
    documents: list[int] = field(default_factory=list)
    unread: list[dict[str, Tally]] = field(default_factory=list)  # for each data set, by field name
    in_a_row: list[Tally] = field(default_factory=list)  # rows of each data set
    longest: int = 0
    max_token_id: int = -1


def _write_tokens(
    path: Path,
    setup: Setup,
    sets: list[LocatedDataset],
    opened: list[OpenSet],
    data: DataSection,
    report: Report,
    pictures: ImageTableWriter | None,
    num_train_sets: int,
) -> _Tally:
    """Tokenize all rows into the table. Raises DataError if the policy refuses rows, or no row is usable."""
    tally = _Tally(documents=[0] * len(sets), unread=[{} for _ in sets], in_a_row=[Tally() for _ in sets])
    # Bytes of the data sets before each
    behind = np.cumsum([0, *(total_bytes(s.located) for s in sets)]).tolist()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    least = _BYTES_A_PROCESS if pictures is None else _BYTES_WITH_PICTURES
    num_proc = data.num_proc or max(1, min(cpus, behind[-1] // least))
    meter = Meter(behind[-1], report)
    chunks: Iterator[Chunk] = (chunk for o in opened for chunk in o.chunks)
    writer = TableWriter(path, setup.kind.columns)
    try:
        # Chunks come back in order; counting and refusing happen here, writing as they arrive.
        for result in tokenise(setup, chunks, num_proc):
            number = _count(tally, result, data, setup.kind.group)
            if ALWAYS_REFUSED in tally.refused:
                break
            if len(result.block):
                writer.write(result.block)
            if pictures is not None and len(result.block):
                pictures.write(result.images, number, train=number < num_train_sets)
            meter.update(tally.counts.rows_read, behind[number] + result.consumed, tally.counts.tokens)
    finally:
        # After an error, too: no descriptor stays open
        writer.close()
        if pictures is not None:
            pictures.close()
    if tally.refused:
        raise DataError(*refusal(tally.refused, tally.counts.rows_read))
    if not tally.counts.rows_used:
        raise DataError(
            _nothing_usable(tally.counts, setup), *left_out(tally.counts.skipped, tally.counts.rows_read)
        )
    return tally


def _count(tally: _Tally, result: ChunkResult, data: DataSection, group: int) -> int:
    """Add a chunk to the counts; return the index of its data set."""
    counts, block = tally.counts, result.block
    counts.rows_read += result.read
    used = len(starts_of(block.dataset, block.row, group)) - 1
    counts.rows_used += used
    counts.tokens += int(block.lengths.sum())
    counts.labels += int(block.num_labels.sum())
    tally.documents[result.dataset] += used
    if len(block):
        tally.longest = max(tally.longest, int(block.lengths.max()))
        tally.max_token_id = max(tally.max_token_id, int(np.maximum(block.coded, ~block.coded).max()))
    for problem in result.skipped:
        counts.skip(problem)
        if refuses(problem.reason, data.on_bad_row, data.on_too_long):
            for reason, where, detail in problem.each():
                tally.refused.setdefault(reason, Tally()).add(where, detail)
    for problem in result.truncated:
        counts.truncate(problem)
    for name, rows in result.unread.items():
        if is_harmless(name):
            counts.set_aside[name] = counts.set_aside.get(name, 0) + rows.count
        else:
            tally.unread[result.dataset].setdefault(name, Tally()).merge(rows)
    tally.in_a_row[result.dataset].merge(result.in_a_row)
    return result.dataset


def _nothing_usable(counts: PrepareCounts, setup: Setup) -> Diagnostic:
    if set(counts.skipped) == {"no_labels"}:
        return codes.DATA_NO_LABELS(
            "no token of any row carries loss",
            "data.train_on",
            f"train_on: {setup.train_on}",
            "answers with loss: false (or weight: 0) have none; else use a chat template that marks the"
            " assistant's turns",
        )
    read = f"{counts.rows_read} rows read, all of them skipped"
    return codes.DATA_NO_USABLE_ROWS("no row can be used", "data.train", read, "the reasons are listed below")


def _write_indices(
    stage: Path,
    tally: _Tally,
    num_train_sets: int,
    has_eval: bool,
    validation_split: float | int | None,
    seed: int,
    kind: RowKind,
) -> list[Diagnostic]:
    """Write the row indices for training and for evaluation. Raises DataError if one of them is empty."""
    table = TokenTable(stage / TOKENS, group=kind.group)
    keys = table.keys[table.starts[:-1]]
    train = np.flatnonzero(table.group_dataset < num_train_sets)
    held = np.flatnonzero(table.group_dataset >= num_train_sets)
    notes: list[Diagnostic] = []
    if not len(train) or (has_eval and not len(held)):
        where = "data.eval" if len(train) else "data.train"
        raise DataError(
            codes.DATA_NO_USABLE_ROWS(
                "no row can be used", where, f"{tally.counts.rows_read} rows read", "see the reasons"
            ),
            *left_out(tally.counts.skipped, tally.counts.rows_read),
        )
    if validation_split:
        kept, out = split_rows(keys[train], validation_split, seed)
        train, held = train[kept], train[out]
    elif count := int(np.isin(keys[held], keys[train]).sum()):
        evidence = {"count": count}
        notes.append(
            codes.DATA_EVAL_OVERLAP("data.eval", count=count, eval_keys=len(held), evidence=evidence)
        )
    (train, _), (held, _) = table.documents_of(train), table.documents_of(held)
    notes += kind.unlearnable({name: values[train] for name, values in table.columns.items()}, "data.train")
    tally.counts.train_documents, tally.counts.eval_documents = len(train), len(held)
    save_index(stage / TRAIN, train)
    if len(held):
        save_index(stage / EVAL, held)
    return notes


@dataclass(frozen=True)
class PrepareProgress:
    """The state of the preparation.

    ``stage``: fingerprint, waiting (another process prepares the same data), tokenise, write, done.
    ``fraction``: 0 to 1, None if unknown.
    """

    stage: str
    rows: int = 0
    fraction: float | None = None
    rows_per_second: float = 0.0
    eta_seconds: float | None = None
    tokens: int = 0


Report = Callable[[PrepareProgress], None]


class Meter:
    """Turn finished rows and bytes into rates and an ETA. Reports at most ten times per second."""

    def __init__(self, total_bytes: int, report: Report) -> None:
        self._total = total_bytes
        self._report = report
        self._started = self._reported = time.monotonic()

    def update(self, rows: int, consumed: int, tokens: int) -> None:
        """Report the state after ``rows`` rows."""
        now = time.monotonic()
        if now - self._reported < 0.1:
            return
        self._reported = now
        elapsed = now - self._started
        fraction = min(consumed / self._total, 1.0) if self._total else None
        eta = elapsed * (1 - fraction) / fraction if fraction else None
        self._report(PrepareProgress("tokenise", rows, fraction, rows / elapsed, eta, tokens))


I64 = NDArray[np.int64]


def split_rows(keys: NDArray[np.uint64], wanted: float | int, seed: int) -> tuple[I64, I64]:
    """Return (train, held out): ascending row indices that together cover every row once.

    ``keys`` uint64 [n]: hashes of the prompts; ``wanted``: a fraction below 1, or a number of rows. Groups of
    equal prompts are held out in the order of their hash with the seed, as long as they fit. So the split
    depends on the rows, not on their order. Raises DataError if one side would be empty.
    """
    num = len(keys)
    target = max(1, round(wanted * num)) if wanted < 1 else int(wanted)
    unique, group_of, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    if len(unique) < 2 or target >= num:
        raise DataError(
            codes.DATA_CANNOT_SPLIT(
                "the rows cannot be split, because all have the same prompt"
                if len(unique) < 2
                else "the validation split would leave no training data",
                "data.validation_split",
                f"{target} of {num} rows, {len(unique)} different prompt{'s' if len(unique) != 1 else ''}",
                "set a smaller validation_split, give more rows, or set data.eval",
            )
        )
    # Hold out whole groups in hashed order while they fit.
    order = np.argsort(hash_values(stream_key(seed, "split"), unique), kind="stable")
    held = np.zeros(len(unique), np.bool_)
    left = target
    for group in order.tolist():
        if sizes[group] <= left:
            held[group] = True
            left -= int(sizes[group])
    if not held.any():  # every group is larger than the target
        held[int(np.argmin(sizes))] = True
    return np.flatnonzero(~held[group_of]), np.flatnonzero(held[group_of])
