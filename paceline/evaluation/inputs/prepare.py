"""What processes need before they compute: rows as tokens, and settings of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import read_text
from paceline.data.rows.kinds.documents import DOCUMENTS
from paceline.data.rows.kinds.prompts import PROMPTS
from paceline.evaluation import codes
from paceline.evaluation.inputs.rows import FileRows, read_file
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.work_folder import ANSWERS, WorkSettings

_LONGEST = 1 << 24  # tokens of a prompt: the model's positions are what limits it


def read_task(task: str, config: Config, notes: list[Diagnostic], *, keep_inputs: bool = False) -> FileRows:
    """Read the rows of a file for a task: prompts may be as long as they like, short of the positions."""
    data = config.data
    if task == ANSWERS:
        data = data.model_copy(update={"max_length": _LONGEST})
    rows = read_file(data, config.model, PROMPTS if task == ANSWERS else DOCUMENTS, keep_inputs=keep_inputs)
    notes += rows.notes
    return rows


def settings_of(
    job: EvaluationJob, config: Config, files: Mapping[str, FileRows], folder: Path, tasks: tuple[str, ...]
) -> WorkSettings:
    """Return how a model's rows are computed."""
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
    )


def _check_room(folder: Path, rows: FileRows) -> None:
    positions = json.loads(read_text(folder / "config.json")).get("max_position_embeddings")
    longest = max(range(len(rows.documents)), key=lambda at: len(rows.documents[at]))
    length = len(rows.documents[longest])
    if isinstance(positions, int) and length >= positions:
        where = f"--data, row {rows.numbers[longest] + 1}"
        raise DataError(codes.EVALUATION_NO_ROOM(where, f"{length:,} tokens", positions=positions))
