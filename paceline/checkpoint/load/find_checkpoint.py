"""The checkpoints of a run: a list with age, metric and verdict, and the one to resume from. No torch.

Whether a checkpoint belongs to this run: the fields of both must agree. No torch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.errors import skipped
from paceline.checkpoint.format.foreign_folders import not_ours
from paceline.checkpoint.format.manifest import MANIFEST, Manifest
from paceline.checkpoint.format.verify_files import (
    BEST,
    LATEST,
    VERIFIED,
    CheckpointFolder,
    check_name,
    check_state,
    is_step_name,
    leftovers,
    read_hint,
    read_manifest,
    read_state,
    scan,
    verify,
)
from paceline.checkpoint.save.retention import last_verified
from paceline.config.registries.object_store_url import is_url, parse_url
from paceline.config.sections.training_steps import AUTO_RESUME
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError, PacelineError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.core.units import aligned, human_bytes, human_seconds
from paceline.rules import codes as rules_codes
from paceline.runlog.history import load_history

BEFORE_BYTES = 1 << 30  # a larger checkpoint's tensors are verified by the ranks, as they read them
_NONE_KNOWN: Mapping[Path, CheckpointError] = {}


def find_checkpoint(
    where: str,
    run: RunDir,
    notes: list[Diagnostic] | None = None,
    *,
    most_bytes: int | None = None,
    known: Mapping[Path, CheckpointError] = _NONE_KNOWN,
) -> Path | None:
    """Return the checkpoint for ``resume_from_checkpoint: where``, with every byte verified.

    ``most_bytes``: only sizes of tensors are checked for a larger checkpoint (0: for any). ``known``:
    checkpoints already found damaged. ``latest`` and ``auto`` take the newest complete checkpoint of ``run``;
    ``auto`` returns None if the run has no checkpoint. A path may be a run directory, its ``checkpoints``
    folder or ``checkpoints/latest``: these fall back like ``latest``. It may also be one checkpoint, which is
    used or refused. Skipped checkpoints are reported in ``notes``. Raises CheckpointError; never deletes
    anything.
    """
    notes = notes if notes is not None else []
    if where in (LATEST, AUTO_RESUME):
        return _newest(run.checkpoints, notes, most_bytes, known, may_be_none=where == AUTO_RESUME)
    if is_url(where):  # brought down before the ranks start (checkpoint/preflight.py)
        folder, name = checkpoint_location(where, run)
        return (
            _newest(folder, notes, most_bytes, known)
            if name is None
            else _exactly(folder / name, most_bytes, known)
        )
    # A path: one checkpoint, `latest` in a checkpoints folder, a run directory, or a checkpoints folder.
    path = Path(where).expanduser().absolute()
    folder, name = checkpoint_location(where, run)
    if name is not None:
        return _exactly(path, most_bytes, known)
    if not folder.is_dir() or (folder == path and not scan(path)):
        raise CheckpointError(_no_such(path))
    return _newest(folder, notes, most_bytes, known)


def checkpoint_location(where: str, run: RunDir) -> tuple[Path, str | None]:
    """Return the folder of checkpoints for ``where``, and the checkpoint's name in it if ``where`` is a
    single one.
    """
    if where in (LATEST, AUTO_RESUME):
        return run.checkpoints, None
    if is_url(where):
        url = parse_url(where)
        return run.fetched(url.folder_name), url.step
    path = Path(where).expanduser().absolute()
    if (path / MANIFEST).is_file() or is_step_name(path.name):
        return path.parent, path.name
    if path.name == LATEST and path.parent.is_dir() and not path.is_dir():
        return path.parent, None
    folder = RunDir.at(path).checkpoints
    return (folder if folder.is_dir() or not path.is_dir() else path), None


def only_missing_files(findings: Iterable[Diagnostic]) -> bool:
    """Whether these errors are of missing files, which other nodes may have."""
    missing = {
        codes.CHECKPOINT_INCOMPLETE.name,
        rules_codes.RESUME_NO_CHECKPOINT.name,
        rules_codes.RESUME_ONLY_INCOMPLETE.name,
    }
    return all(finding.code in missing or finding.evidence.get("absent") for finding in findings)


def locate_errors(error: PacelineError) -> list[Diagnostic]:
    """Return the errors of a checkpoint at the config key that names it, with its folder in ``findings``."""
    key = "training.resume_from_checkpoint"
    findings = [(d, d.where if d.where != key else "") for d in error.diagnostics]
    return [replace(d, where=key, found=": ".join(filter(None, (folder, d.found)))) for d, folder in findings]


def _newest(
    folder: Path,
    notes: list[Diagnostic],
    most_bytes: int | None,
    known: Mapping[Path, CheckpointError],
    *,
    may_be_none: bool = False,
) -> Path | None:
    """Return the newest checkpoint that verifies.

    Refuse if some exist but none is complete (resume.only_incomplete), and if a newer Paceline wrote one:
    resuming from an older checkpoint would repeat steps although nothing is damaged.
    """
    checkpoints = scan(folder)
    hinted = read_hint(folder / LATEST)
    problems: list[tuple[CheckpointFolder, CheckpointError]] = []
    # Newest first; notes name what was skipped on the way.
    for candidate in reversed(checkpoints):
        # Sizes first, hashes last: a truncated file is found without reading the others.
        problem = candidate.problem or known.get(candidate.path) or problem_of(candidate, most_bytes)
        if problem is None:
            # An older release must not train on from an earlier step, as if the newer steps did not exist.
            refuse_newer(checkpoints, candidate.step)
            problems += [
                (f, f.problem)
                for f in checkpoints
                if f.problem and f.manifest is None and f.step > candidate.step
            ]
            notes.extend(_passed_over(f, p, candidate) for f, p in problems)
            if problems or candidate.path.is_symlink() or (hinted is not None and hinted != candidate.name):
                notes.append(_took(candidate, hinted))
            return candidate.path
        problems.append((candidate, problem))
    refuse_newer(checkpoints)
    if problems:
        raise CheckpointError(_only_incomplete(folder, problems))
    # No checkpoint at all: a fresh start if that is allowed.
    # A save that never ended: worth a word before the run starts at step 0.
    staged = leftovers(folder)
    if may_be_none:
        if staged:
            notes.append(save_never_ended(folder, len(staged)))
        return None
    remedy = "set resume_from_checkpoint: auto (starts at step 0 if there is no checkpoint), a path"
    what = "there is no checkpoint to resume from"
    if staged:
        what += " (a save was started but never completed)"
    if (foreign := not_ours(folder.parent)) is not None:
        what, remedy = f"{what}; {foreign[0]}", foreign[1]
    raise CheckpointError(
        rules_codes.RESUME_NO_CHECKPOINT(what, str(folder), hint=f"{remedy}, or remove the key")
    )


def refuse_newer(checkpoints: Sequence[CheckpointFolder], step: int = -1) -> None:
    """Raise the error of a checkpoint of a newer Paceline, of a later step than ``step``."""
    for checkpoint in checkpoints:
        if (
            checkpoint.problem
            and checkpoint.step > step
            and checkpoint.problem.diagnostics[0].code == codes.CHECKPOINT_NEWER.name
        ):
            raise checkpoint.problem


def _exactly(path: Path, most_bytes: int | None, known: Mapping[Path, CheckpointError]) -> Path:
    """Verify the checkpoint that the user named, without falling back to another."""
    if path in known:
        raise known[path]
    if not path.is_dir():
        raise CheckpointError(_no_such(path))
    manifest = read_manifest(path)
    check_name(path, manifest)
    verify(path, manifest, tensors=_is_hashed(manifest, most_bytes))
    check_state(path, manifest, read_state(path))
    return path


def _is_hashed(manifest: Manifest, most_bytes: int | None) -> bool:
    return most_bytes is None or manifest.total_bytes <= most_bytes


def problem_of(checkpoint: CheckpointFolder, most_bytes: int | None) -> CheckpointError | None:
    """Return the error of a checkpoint whose files have the right sizes (``most_bytes``: as above)."""
    assert checkpoint.manifest is not None
    try:
        verify(checkpoint.path, checkpoint.manifest, tensors=_is_hashed(checkpoint.manifest, most_bytes))
        check_state(checkpoint.path, checkpoint.manifest, read_state(checkpoint.path))
    except CheckpointError as problem:
        return problem
    return None


def _passed_over(
    checkpoint: CheckpointFolder, problem: CheckpointError, taken: CheckpointFolder
) -> Diagnostic:
    first, again = problem.diagnostics[0], checkpoint.step - taken.step
    steps = f"; {again} step{'s are' if again > 1 else ' is'} trained again" if again > 0 else ""
    return skipped(
        checkpoint.name,
        first.what,
        str(checkpoint.path),
        f"check it, then remove it by hand; resuming from {taken.name} instead{steps}",
        first,
    )


def _took(checkpoint: CheckpointFolder, hinted: str | None) -> Diagnostic:
    note = f" ('latest' names {hinted})" if hinted and hinted != checkpoint.name else ""
    if checkpoint.path.is_symlink():
        note += f", a link to {checkpoint.path.resolve()}"
    return codes.RESUME_CHOSEN(
        f"resuming from {checkpoint.name}, the newest complete checkpoint{note}",
        str(checkpoint.path),
        severity=Severity.NOTE,
    )


def _only_incomplete(folder: Path, problems: list[tuple[CheckpointFolder, CheckpointError]]) -> Diagnostic:
    listed = "; ".join(
        f"{checkpoint.name}: {problem.diagnostics[0].what}: {problem.diagnostics[0].found}"
        for checkpoint, problem in problems[:5]
    )
    return rules_codes.RESUME_ONLY_INCOMPLETE(
        "the run has checkpoints, but none of them is complete; nothing was deleted",
        str(folder),
        listed,
        "remove resume_from_checkpoint and set another training.output_dir to start from scratch,"
        " or set resume_from_checkpoint: PATH of a complete checkpoint",
        evidence={"checkpoints": [str(checkpoint.path) for checkpoint, _ in problems]},
    )


def save_never_ended(folder: Path, count: int) -> Diagnostic:
    """Return the warning that a run starts from step 0 although saves were started."""
    return codes.RESUME_FRESH_START(
        f"{count} save{'s were' if count > 1 else ' was'} started but never completed; no"
        " checkpoint was published, so the run starts at step 0",
        str(folder),
        severity=Severity.WARNING,
    )


def _no_such(path: Path) -> Diagnostic:
    if (foreign := not_ours(path)) is not None:
        what, remedy = foreign
        return codes.RESUME_NOT_A_CHECKPOINT(what, "training.resume_from_checkpoint", str(path), remedy)
    near = path if path.is_dir() else path.parent
    there = [f.name for f in scan(near)]
    return codes.RESUME_NOT_A_CHECKPOINT(
        "there is no checkpoint at this path",
        "training.resume_from_checkpoint",
        f"{path}"
        + ("" if path.exists() else " does not exist")
        + (f"; available: {', '.join(there[-3:])}" if there else ""),
        "use latest, auto, a run directory, or …/checkpoints/step-00000500",
        evidence={"absent": not path.exists()},
    )


LOSS = "eval_loss"


@dataclass(frozen=True)
class ListedCheckpoint:
    """One checkpoint. ``path``: in object storage a URL. ``verdict``: ``verified`` (the newest whose
    bytes were all hashed), ``complete`` (all files with their sizes), ``committed`` (at a URL) or the error.
    """

    name: str
    path: Path | str
    step: int
    num_bytes: int | None
    strategy: str
    world_size: int | None
    age: float | None  # seconds
    metric: str
    value: float | None
    marks: tuple[str, ...]
    verdict: str

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "path": str(self.path),
            "step": self.step,
            "bytes": self.num_bytes,
            "strategy": self.strategy,
            "world_size": self.world_size,
            "age_seconds": self.age,
            "metric": self.metric,
            "value": self.value,
            "marks": list(self.marks),
            "verdict": self.verdict,
        }


def list_checkpoints(folder: Path) -> list[ListedCheckpoint]:
    """Return the checkpoints in a run directory or in its ``checkpoints`` folder, oldest first."""
    run = RunDir.at(folder)
    checkpoints = run.checkpoints if run.checkpoints.is_dir() else folder
    evals = load_history(RunDir.at(checkpoints.parent)).evals
    measured = {step: event.metrics for step, event in evals.items()}
    marks = {
        LATEST: read_hint(checkpoints / LATEST),
        BEST: read_hint(checkpoints / BEST),
        VERIFIED: last_verified(checkpoints),
    }
    return [_listed(checkpoint, marks, measured) for checkpoint in scan(checkpoints)]


def as_table(rows: list[ListedCheckpoint]) -> str:
    """Return the rows as text with a header."""
    cells = [("checkpoint", "step", "size", "strategy", "age", "metric", "verdict")]
    for row in rows:
        strategy = f"{row.strategy} × {row.world_size}" if row.world_size else row.strategy
        value = "" if row.value is None else f"{row.metric} {row.value:.4g}"
        marks = f" ({', '.join(row.marks)})" if row.marks else ""
        link = f" -> {row.path.resolve()}" if isinstance(row.path, Path) and row.path.is_symlink() else ""
        size = "" if row.num_bytes is None else human_bytes(row.num_bytes)
        age = "" if row.age is None else human_seconds(row.age)
        cells.append((row.name + marks + link, str(row.step), size, strategy, age, value, row.verdict))
    return aligned(cells)


def _listed(
    checkpoint: CheckpointFolder, marks: Mapping[str, str | None], measured: Mapping[int, Mapping[str, float]]
) -> ListedCheckpoint:
    manifest, state, problem = checkpoint.manifest, JsonObject(), checkpoint.problem
    if problem is None:
        try:
            state = read_state(checkpoint.path)
        except CheckpointError as error:
            problem = error
    metric, value = _metric(state, measured.get(checkpoint.step, {}))
    first = problem.diagnostics[0] if problem else None
    mine = tuple(mark for mark, name in marks.items() if name == checkpoint.name)
    sound = VERIFIED if VERIFIED in mine else "complete"
    return ListedCheckpoint(
        checkpoint.name,
        checkpoint.path,
        checkpoint.step,
        manifest.total_bytes if manifest else None,
        str(state.get("strategy") or ""),
        manifest.world_size if manifest else None,
        max(0.0, time.time() - manifest.created) if manifest else None,
        metric,
        value,
        tuple(mark for mark in mine if mark != VERIFIED),
        sound if first is None else f"{first.what}: {first.found}",
    )


def _metric(state: JsonObject, measured: Mapping[str, float]) -> tuple[str, float | None]:
    """Return the run's metric with its value at this step: measured here, or the best so far."""
    training, train = as_object(as_object(state.get("config")).get("training")), as_object(state.get("train"))
    configured: Json = training.get("metric_for_best_model")
    metric = str(configured) if configured else LOSS
    for name in (metric, f"eval_{metric}"):
        if name in measured:
            return name, measured[name]
    best = train.get("best_metric")
    if isinstance(best, float) and train.get("best_step") == train.get("step"):
        return metric, best
    return metric, None


def same_run(state: Mapping[str, Json], now: Mapping[str, Json], *, override: Collection[str] = ()) -> None:
    """Raise CheckpointError with every field in which the checkpoint's run differs from this one.

    ``state``: the checkpoint's; ``now``: this run's values of ``config_digest``, ``data_fingerprint``,
    ``seed``, ``global_batch``, ``seq_len``, ``packing`` (a field absent from ``now`` is not compared). World
    size and strategy may change. ``override``: fields that may differ.
    """
    differences = [
        codes.CHECKPOINT_OTHER_RUN(
            field,
            f"{_short(state.get(field))} in the checkpoint, {_short(now[field])} now",
            detail=detail,
            hint=remedy,
            evidence={"field": field, "old": state.get(field), "new": now[field]},
        )
        for field, (detail, remedy) in _FIELDS.items()
        if field in now and field not in override and state.get(field) != now[field]
    ]
    if differences:
        raise CheckpointError(*differences)


_ANEW = (
    "or start a new run from its weights: no resume_from_checkpoint, and what paceline export writes of it as"
    " lora.adapter_name_or_path or model.name_or_path"
)
_BACK = f"use the value it was saved with, {_ANEW}"
_FIELDS: Mapping[str, tuple[str, str]] = {
    "data_fingerprint": (
        "data set, tokenizer, template or length",
        f"use the data it was saved with, {_ANEW}",
    ),
    "global_batch": (
        "global batch (micro-batch × accumulation × data-parallel ranks)",
        ("choose a micro-batch and accumulation whose product with the number of ranks gives the old value"),
    ),
    "seq_len": ("sequence length", _BACK),
    "packing": ("packing", _BACK),
    "seed": ("seed", _BACK),
    "config_digest": (
        "config",
        f"use the config it was saved with (config.yaml in the run directory), {_ANEW}",
    ),
}


def _short(value: Json) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 24 else text[:12] + "…"
