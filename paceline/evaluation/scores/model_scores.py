"""One model's numbers over the rows of a file: losses, and metrics of its answers."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from paceline.config.registries.evaluation_metrics import written_out
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.data.tokenizer.file_facts import SpecialTexts
from paceline.evaluation import codes
from paceline.evaluation.answers_file import generate_rows
from paceline.evaluation.file_rows import FileRows, read_task, settings_of
from paceline.evaluation.model_folders import NamedModel, config_of
from paceline.evaluation.pictures import write_pictures
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.rank import Report
from paceline.evaluation.processes.ranks import compute_on_ranks, number_of_ranks
from paceline.evaluation.processes.work_folder import ANSWERS, COPIES, LOSSES, WorkFolder, num_batches
from paceline.evaluation.scores.judge import judged
from paceline.evaluation.scores.metrics import Scores, pass_at, passes_of, score

# Exp of more is no float
_LARGEST_EXPONENT = 700.0


class Answered(NamedTuple):
    """The answers of one row."""

    number: int
    facts: JsonObject
    answers: list[JsonObject]


def measure(model: NamedModel, job: EvaluationJob, notes: list[Diagnostic], report: Report) -> JsonObject:
    """Return the numbers of one model. Raises PacelineError."""
    copies = job.strategy == COPIES
    with model.folder(copies) as folder, tempfile.TemporaryDirectory(prefix="paceline-evaluate-") as scratch:
        config = config_of(model, folder, job)
        work = WorkFolder(Path(scratch))
        numbers: JsonObject = {"name": model.name, "path": str(model.path), "step": model.step}
        tasks = [*([LOSSES] if job.losses else []), *([ANSWERS] if job.metrics or job.judge else [])]
        files = {task: read_task(task, config, notes) for task in tasks}
        work.write(settings_of(job, config, files, folder, tuple(tasks)))
        for task, rows in files.items():
            work.write_rows(task, rows.documents, rows.numbers)
            write_pictures(work.pictures(task), rows.pictures)
        batches = max(num_batches(len(rows.documents), job.batch_size) for rows in files.values())
        compute_on_ranks(work, number_of_ranks(job.nproc, batches if copies else None), report)
        for task, rows in files.items():
            results = work.results(task, len(rows.documents), job.batch_size)
            numbers |= (
                losses_of(rows, results, notes) if task == LOSSES else answers_of(rows, results, job, notes)
            )
    return numbers


def losses_of(rows: FileRows, results: Sequence[Json], notes: list[Diagnostic]) -> JsonObject:
    """Return loss, perplexity and token accuracy over all rows: sums over rows in the file's order.

    A value is None without tokens, or if a loss is not finite, which a note reports.
    """
    sums = cast("Sequence[tuple[float, int, int]]", results)
    tokens = sum(row[1] for row in sums)
    wrong = [number for number, row in zip(rows.numbers, sums, strict=True) if not math.isfinite(row[0])]
    if wrong:
        first = f"row {wrong[0] + 1}: {sums[rows.numbers.index(wrong[0])][0]}"
        notes.append(codes.EVALUATION_LOSS("--data", first, wrong=len(wrong), sums=len(sums)))
    loss = math.fsum(row[0] for row in sums) / tokens if tokens and not wrong else None
    return {
        "rows": len(sums),
        "tokens": tokens,
        "rows_skipped": rows.num_skipped,
        "rows_truncated": rows.truncated,
        "loss": loss,
        "perplexity": math.exp(loss) if loss is not None and loss < _LARGEST_EXPONENT else None,
        "token_accuracy": sum(row[2] for row in sums) / tokens if tokens else None,
    }


def answers_of(
    rows: FileRows, results: Sequence[Json], job: EvaluationJob, notes: list[Diagnostic]
) -> JsonObject:
    """Return the metrics of the answers, and how long they are."""
    answered = [
        Answered(number, as_object(json.loads(facts)), answers)
        for number, facts, answers in zip(
            rows.numbers, rows.facts, cast("Sequence[list[JsonObject]]", results), strict=True
        )
    ]
    answers = [answer for row in answered for answer in row.answers]
    numbers: JsonObject = {
        "answers": len(answers),
        "answer_tokens": sum(int(str(answer["tokens"])) for answer in answers) / len(answers),
        "answers_ended": sum(bool(answer["ended"]) for answer in answers) / len(answers),
    }
    wheres = [f"row {row.number + 1}" for row in answered for _ in row.answers]
    pairs = _pairs(answered, rows.special) if job.metrics else []
    scores: dict[str, Scores] = {}
    for name in written_out(job.metrics):
        passes = passes_of(name)
        inner = name if passes is None else passes[1]
        if inner not in scores:
            scores[inner] = score(inner, pairs)
            warning = scores[inner].warning(inner, wheres)
            notes += [warning] if warning is not None else []
        numbers[name] = (
            scores[inner].mean if passes is None else _passed(passes[0], scores[inner], job.samples)
        )
    if job.judge is not None:
        prompts = [
            (str(row.facts.get("prompt", "")), rows.special.removed_from(str(row.facts.get("answer", ""))))
            for row in answered
        ]
        texts = [
            (*prompts[position // job.samples], str(answer["text"]))
            for position, answer in enumerate(answers)
        ]
        numbers |= judged(texts, wheres, job, notes, generate_rows)
    return numbers


def _pairs(answered: Sequence[Answered], special: SpecialTexts) -> list[tuple[str, str]]:
    without = [row.number + 1 for row in answered if row.facts.get("answer") is None]
    if without:
        raise DataError(
            codes.EVALUATION_NO_EXPECTED(
                "--data",
                "row " + ", ".join(map(str, without[:5])),
                without=len(without),
                answered=len(answered),
            )
        )
    return [
        (str(answer["text"]), special.removed_from(str(row.facts["answer"])))
        for row in answered
        for answer in row.answers
    ]


def _passed(k: int, scores: Scores, samples: int) -> float:
    right = [
        sum(value >= 1.0 for value in scores.values[first : first + samples])
        for first in range(0, len(scores.values), samples)
    ]
    return sum(pass_at(k, samples, correct) for correct in right) / len(right)
