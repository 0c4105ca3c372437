"""Answers of checkpoints to questions about pictures, and the pictures, small, in the run directory."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.sections.data import Dataset
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_into
from paceline.data.images.decide import images_in_rows
from paceline.evaluation.file_rows import FileRows, read_task, settings_of
from paceline.evaluation.model_folders import NamedModel, config_of, named_models
from paceline.evaluation.pictures import picture_loader, write_pictures
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.ranks import compute_on_ranks, number_of_ranks
from paceline.evaluation.processes.work_folder import ANSWERS, WorkFolder, num_batches

if TYPE_CHECKING:
    from PIL.Image import Image

    from paceline.config.schema import Config

_SHOWN = 64  # rows of a checkpoint whose pictures are kept
_SIDE = 256  # pixels of a kept picture's longer side


def has_pictures(config: Config, questions: Path) -> bool:
    """Whether the questions in a file have pictures."""
    rows = config.data.model_copy(update={"train": (Dataset(path=str(questions)),), "eval": ()})
    return images_in_rows(rows, imports=False) is True


def answer_about_pictures(
    run: RunDir, questions: Path, checkpoints: str, max_new_tokens: int
) -> Iterator[tuple[int, list[JsonObject]]]:
    """Yield (step, rows) of checkpoints (``EvaluationJob.checkpoints``), as ``exact_match`` writes them.

    The first rows' pictures are kept in the run directory, and named by ``pictures``. Raises PacelineError.
    """
    job = EvaluationJob(
        models=(str(run.root),),
        data={"path": str(questions)},
        overrides=(f"generation.max_new_tokens={max_new_tokens}", "generation.temperature=0"),
        checkpoints=checkpoints,
    )
    for model in named_models(job, []):
        yield model.step or 0, _answered(run, model, job)


def _answered(run: RunDir, model: NamedModel, job: EvaluationJob) -> list[JsonObject]:
    with model.folder() as folder, tempfile.TemporaryDirectory(prefix="paceline-answers-") as scratch:
        config = config_of(model, folder, job)
        rows = read_task(ANSWERS, config, [], keep_inputs=True)
        settings, work = (
            settings_of(job, config, {ANSWERS: rows}, folder, (ANSWERS,)),
            WorkFolder(Path(scratch)),
        )
        work.write(settings)
        work.write_rows(ANSWERS, rows.documents, rows.numbers)
        write_pictures(work.pictures(ANSWERS), rows.pictures)
        count = len(rows.documents)
        ranks = number_of_ranks(job.nproc, num_batches(count, job.batch_size))
        compute_on_ranks(work, ranks, lambda *_: None)
        given = [
            as_object(one[0]) for one in work.results(ANSWERS, count, job.batch_size) if isinstance(one, list)
        ]
        kept: list[list[str]] = []
        if settings.images is not None:
            loader = picture_loader(settings.images, folder, work.pictures(ANSWERS))
            for row in range(min(count, _SHOWN)):
                kept.append([_keep(run, loader.decoded(picture)) for picture, _ in loader.table.of(row)])
    return [*_rows(rows, [str(answer["text"]) for answer in given], kept)]


def _rows(rows: FileRows, answers: Sequence[str], kept: Sequence[Sequence[str]]) -> Iterator[JsonObject]:
    for number, (row, facts, answer) in enumerate(zip(rows.inputs, rows.facts, answers, strict=True)):
        expected = str(as_object(json.loads(facts)).get("answer", ""))
        right = answer.strip() == rows.special.removed_from(expected).strip()
        written: JsonObject = {"prompt": _question(row), "expected": expected, "answer": answer}
        shown: JsonObject = {"pictures": [*kept[number]]} if number < len(kept) else {}
        yield {**written, "correct": right, **shown}


def _question(row: JsonObject) -> str:
    """Return the text of a row's last question."""
    turns = row.get("messages")
    questions = (
        [as_object(turn) for turn in turns if as_object(turn).get("role") == "user"]
        if isinstance(turns, list)
        else []
    )
    return _text(questions[-1].get("content") if questions else row.get("prompt"))


def _text(content: Json) -> str:
    if isinstance(content, list):
        return " ".join(str(part["text"]) for part in map(as_object, content) if "text" in part)
    return str(content or "").replace("<image>", "").strip()


def _keep(run: RunDir, picture: Image) -> str:
    """Write a picture, made small, into the run directory, unless it is there; return its name."""
    picture.thumbnail((_SIDE, _SIDE))
    picture.save(stream := BytesIO(), format="JPEG", quality=90)
    name = hashlib.sha256(stream.getvalue()).hexdigest()[:32]
    path = run.picture(name)
    if not path.exists():
        with written_into(run.root):
            path.parent.mkdir(exist_ok=True)
            staged = path.with_name(f".{name}.{os.getpid()}")
            staged.write_bytes(stream.getvalue())
        staged.replace(path)
    return name
