"""Answers to the rows of a file, written to another one; after a kill, finished work is not repeated."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from filelock import FileLock, Timeout

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.evaluation import codes
from paceline.evaluation.file_rows import FileRows, read_task, settings_of
from paceline.evaluation.job_checks import checked
from paceline.evaluation.model_folders import NamedModel, config_of
from paceline.evaluation.pictures import write_pictures
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.rank import Report
from paceline.evaluation.processes.ranks import compute_on_ranks, number_of_ranks
from paceline.evaluation.processes.work_folder import ANSWERS, COPIES, WorkFolder, WorkSettings, num_batches


def generate_rows(job: EvaluationJob, notes: list[Diagnostic], report: Report) -> JsonObject:
    """Write the answers of one model to ``job.to``, a JSON line each in the order of the rows.

    Unfinished work is kept next to it in ``.NAME.partial``; the file appears when all rows are done. Raises
    PacelineError.
    """
    assert job.to is not None
    to = Path(job.to).expanduser().absolute()
    if to.exists() and not job.overwrite:
        raise ConfigError(
            codes.EVALUATION_OUTPUT(
                "this file exists already", "--to", str(to), "give another file, or --overwrite"
            )
        )
    models = checked(job, notes)
    if len(models) != 1:
        message = f"answers are written for one model, {len(models)} are named"
        names = ", ".join(model.name for model in models)
        raise ConfigError(codes.EVALUATION_JOB(message, "command line", names, "name one checkpoint"))
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = to.with_name(f".{to.name}.partial")
    try:
        # A second process would write the same answers: it is refused, and does not wait
        with FileLock(f"{partial}.lock", timeout=0):
            summary = _generated(models[0], job, to, partial, notes, report)
            shutil.rmtree(partial)
    except Timeout:
        raise ConfigError(
            codes.EVALUATION_OUTPUT(
                "another process is writing this file", "--to", str(to), "wait for it, or give another file"
            )
        ) from None
    Path(f"{partial}.lock").unlink(missing_ok=True)
    return summary


def _generated(
    model: NamedModel, job: EvaluationJob, to: Path, partial: Path, notes: list[Diagnostic], report: Report
) -> JsonObject:
    copies = job.strategy == COPIES
    with model.folder(copies) as folder:
        config = config_of(model, folder, job)
        rows = read_task(ANSWERS, config, notes, keep_inputs=True)
        settings = settings_of(job, config, {ANSWERS: rows}, folder, (ANSWERS,))
        work = _begun(partial, _identity(model, settings, rows), job)
        batches = num_batches(len(rows.documents), job.batch_size)
        before = len(work.done(ANSWERS))
        work.write(settings)
        work.write_rows(ANSWERS, rows.documents, rows.numbers)
        write_pictures(work.pictures(ANSWERS), rows.pictures)
        compute_on_ranks(work, number_of_ranks(job.nproc, batches if copies else None), report)
        results = cast("list[list[JsonObject]]", work.results(ANSWERS, len(rows.documents), job.batch_size))
    staged = to.with_name(f".{to.name}.staged")
    with open(staged, "w", encoding="utf-8") as file:
        for line in _lines(rows, results):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    # The file has all of its rows, or is not there
    os.replace(staged, to)
    return {
        "name": model.name,
        "path": str(model.path),
        "to": str(to),
        "rows": len(results),
        "rows_skipped": rows.num_skipped,
        "answers": sum(map(len, results)),
        "resumed_rows": min(before * job.batch_size, len(results)),
    }


def _lines(rows: FileRows, results: list[list[JsonObject]]) -> Iterator[JsonObject]:
    """Yield one line per answer: the row's number (from 1), the row as read, and the answer."""
    for number, row, answers in zip(rows.numbers, rows.inputs, results, strict=True):
        for sample, answer in enumerate(answers):
            yield {
                "row": number + 1,
                **({"sample": sample + 1} if len(answers) > 1 else {}),
                "generated": answer["text"],
                "finish_reason": "stop" if answer["ended"] else "length",
                "tokens": answer["tokens"],
                "input": row,
            }


def _identity(model: NamedModel, settings: WorkSettings, rows: FileRows) -> str:
    """Return a digest of everything that determines the answers, which excludes the number of processes."""
    digest = hashlib.sha256()
    for document in rows.documents:
        digest.update(document.tobytes() + b"|")
    weights = sorted(model.path.rglob("*.safetensors"))
    files = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in weights]
    options = {name: value for name, value in vars(settings).items() if name != "model"}
    digest.update(json.dumps([files, options, rows.numbers]).encode())
    return digest.hexdigest()


def _begun(partial: Path, identity: str, job: EvaluationJob) -> WorkFolder:
    """Return the folder of the work, with the results of an earlier process for the same job. Raises
    ConfigError."""
    mark = partial / "identity"
    if partial.is_dir() and (job.overwrite or not mark.is_file()):
        shutil.rmtree(partial)
    if mark.is_file() and mark.read_text(encoding="utf-8") != identity:
        message = "this file was begun with other rows, another model or other settings"
        remedy = "repeat the command that began it, give another file, or --overwrite"
        raise ConfigError(codes.EVALUATION_OUTPUT(message, "--to", str(partial), remedy))
    partial.mkdir(exist_ok=True)
    mark.write_text(identity, encoding="utf-8")
    return WorkFolder(partial)
