"""The rows of a file as tokens, in file order, and the settings for computing them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from paceline.config.schema import Config
from paceline.config.sections.data import DataSection
from paceline.config.sections.model import ModelSection
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import DataError
from paceline.core.files import read_text
from paceline.core.json_types import JsonObject, as_object
from paceline.data.images.table import ImageBlock
from paceline.data.preflight.check_sets import unshown
from paceline.data.preflight.find_sets import find_sets
from paceline.data.prepare.choose_template import settle_template, stop_tokens
from paceline.data.prepare.prepare import setup_of
from paceline.data.prepare.tokenize import ChunkResult, open_set, tokenise_chunk
from paceline.data.rows.kinds.base import DOCUMENTS, RowKind
from paceline.data.rows.kinds.prompts import PROMPTS
from paceline.data.rows.row_errors import Tally, left_out, refusal, refuses
from paceline.data.tokenizer.file_facts import SpecialTexts, inner_texts, special_texts
from paceline.data.tokenizer.load import open_tokenizer, pad_token_id
from paceline.evaluation import codes
from paceline.evaluation.pictures import sees_rows, stored_options
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.work_folder import ANSWERS, WorkSettings


@dataclass
class FileRows:
    """The usable rows of a file.

    documents  int32 tokens of each, coded as in ``data.token_table``: a token without loss as its complement
    numbers    its row in the file, from 0
    facts      the other columns of a prompt's row (JSON objects as text)
    inputs     its row as read, where it is kept
    special    tokens that generated text never shows
    pictures   those of the documents, block by block; None where rows have none
    """

    pad_id: int
    stop_ids: tuple[int, ...]
    documents: list[NDArray[np.int32]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    inputs: list[JsonObject] = field(default_factory=list)
    rows_read: int = 0
    truncated: int = 0
    skipped: dict[str, Tally] = field(default_factory=dict)
    notes: list[Diagnostic] = field(default_factory=list)
    special: SpecialTexts = field(default_factory=SpecialTexts)
    pictures: list[ImageBlock] | None = None

    @property
    def num_skipped(self) -> int:
        return sum(tally.count for tally in self.skipped.values())


def read_file(
    data: DataSection, model: ModelSection, kind: RowKind, *, keep_inputs: bool = False
) -> FileRows:
    """Tokenise the rows of ``data.train`` as a training on them would.

    Raises DataError for rows that cannot be used, unless ``data.on_bad_row`` skips them, and if none is
    left.
    """
    setup = setup_of(data, model, kind, vision=sees_rows(data, model))
    (data_set,) = find_sets("--data", data.train)
    opened = open_set(0, data_set, setup.reading)
    tokenizer = open_tokenizer(setup.tokenizer)
    setup, notes = settle_template(setup, tokenizer, {opened.shape.format})
    rows = FileRows(pad_token_id(tokenizer), tuple(stop_tokens(setup, tokenizer)))
    rows.special = special_texts(tokenizer)
    rows.pictures = None if setup.images is None else []
    rows.notes += [*opened.notes, *notes]
    for chunk in opened.chunks:
        kept = {row.number: cast(JsonObject, row.value) for row in chunk.rows} if keep_inputs else {}
        _add(rows, tokenise_chunk(setup, chunk), kept)
    refused = {
        reason: tally
        for reason, tally in rows.skipped.items()
        if refuses(reason, data.on_bad_row, data.on_too_long)
    }
    answers = (as_object(json.loads(facts)).get("answer") for facts in rows.facts)
    rows.notes += unshown(
        inner_texts(tokenizer), (str(a) for a in answers if a is not None), data_set.section.path
    )
    if refused:
        raise DataError(*refusal(refused, rows.rows_read))
    if not rows.documents:
        raise DataError(*left_out(rows.skipped, rows.rows_read))
    rows.notes += [
        replace(finding, severity=Severity.WARNING) for finding in left_out(rows.skipped, rows.rows_read)
    ]
    return rows


def _add(rows: FileRows, result: ChunkResult, inputs: dict[int, JsonObject]) -> None:
    block, numbers = result.block, result.block.row.tolist()
    rows.rows_read += result.read
    rows.truncated += len(result.truncated)
    ends = np.cumsum(block.lengths)
    rows.documents += [np.array(part) for part in np.split(block.coded, ends[:-1])] if len(ends) else []
    rows.numbers += numbers
    if rows.pictures is not None:
        rows.pictures.append(result.images)
    rows.facts += [facts or "{}" for facts in block.facts]
    rows.inputs += [inputs.get(number, {}) for number in numbers]
    for problem in result.skipped:
        for reason, where, detail in problem.each():
            rows.skipped.setdefault(reason, Tally()).add(where, detail)


_LONGEST = 1 << 24  # tokens of a prompt: the model's positions are what limits it


def read_task(task: str, config: Config, notes: list[Diagnostic], *, keep_inputs: bool = False) -> FileRows:
    """Read the rows of a file for a task: prompts may have any length below the model's positions."""
    data = config.data
    if task == ANSWERS:
        data = data.model_copy(update={"max_length": _LONGEST})
    rows = read_file(data, config.model, PROMPTS if task == ANSWERS else DOCUMENTS, keep_inputs=keep_inputs)
    notes += rows.notes
    return rows


def settings_of(
    job: EvaluationJob, config: Config, files: Mapping[str, FileRows], folder: Path, tasks: tuple[str, ...]
) -> WorkSettings:
    """Return the settings for computing a model's rows."""
    rows = next(iter(files.values()))
    generation = config.generation
    if ANSWERS in files:
        _check_room(folder, files[ANSWERS])
    return WorkSettings(
        tasks,
        str(folder),
        job.dtype,
        job.batch_size,
        rows.pad_id,
        rows.stop_ids,
        generation.max_new_tokens,
        generation.temperature,
        generation.top_p,
        generation.top_k,
        job.samples,
        job.seed,
        job.strategy,
        stored_options(config) if any(f.pictures is not None for f in files.values()) else None,
    )


def _check_room(folder: Path, rows: FileRows) -> None:
    positions = json.loads(read_text(folder / "config.json")).get("max_position_embeddings")
    longest, number = max(zip(map(len, rows.documents), rows.numbers, strict=True), key=lambda pair: pair[0])
    if isinstance(positions, int) and longest >= positions:
        where = f"--data, row {number + 1}"
        raise DataError(codes.EVALUATION_NO_ROOM(where, f"{longest:,} tokens", positions=positions))
