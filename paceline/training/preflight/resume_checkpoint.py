"""The checkpoint to resume from, before a start: it is whole, and belongs to this run. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paceline.checkpoint import codes as checkpoint_codes
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import LATEST, read_config, read_manifest, read_state, scan
from paceline.checkpoint.load.find_checkpoint import (
    BEFORE_BYTES,
    find_checkpoint,
    locate_errors,
    only_missing_files,
    same_run,
)
from paceline.config.registries.object_store_url import is_url, parse_url
from paceline.config.schema import Config
from paceline.config.sections.training_steps import AUTO_RESUME
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import PacelineError
from paceline.core.json_types import JsonObject, as_object
from paceline.core.package import cache_folder
from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes
from paceline.data.prepare.fingerprint import definition
from paceline.data.prepare.prepare import train_fingerprint_of
from paceline.data.rows.kinds.base import row_kind
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.model.read_config import tokenizer_rows
from paceline.plan.plan import Plan
from paceline.training import codes
from paceline.training.checkpointing.resume_compatibility import (
    FIXED,
    best_is_gone,
    keep_global_batch,
    not_compared,
    of_another_program,
    other_layout,
    other_rollout,
    other_training,
    requantised,
)

#: A larger data set is not read for its fingerprint before a start, unless its digests are known.
MOST_BYTES = 2 << 30


def look_at_checkpoint(config: Config, environ: Mapping[str, str], plan: Plan | None) -> Iterator[Diagnostic]:
    """Check that there is a checkpoint to resume from, and that it belongs to this run."""
    where = config.training.resume_from_checkpoint
    if not where:
        return
    run = RunDir.at(config.run_directory())
    if _is_elsewhere(where, config.training.checkpoint_url, run):
        location = where if is_url(where) else str(config.training.checkpoint_url)
        yield checkpoint_codes.RESUME_CHOSEN(
            "none is on this disk: a start brings the checkpoint of the URL down first, if there is one",
            "training.resume_from_checkpoint",
            location,
            severity=Severity.NOTE,
        )
        return
    several = plan is not None and plan.num_nodes > 1
    try:
        notes: list[Diagnostic] = []
        path = find_checkpoint(where, run, notes, most_bytes=0)
        if path is None:
            return
        if several and any(note.code == checkpoint_codes.RESUME_SKIPPED_INCOMPLETE.name for note in notes):
            yield _on_all_nodes(run)  # what is skipped here may be whole over all of them
            return
        manifest, state, saved = read_manifest(path), read_state(path), read_config(path)
    except PacelineError as error:
        if several and only_missing_files(error.diagnostics):
            yield _on_all_nodes(run)
        else:
            yield from locate_errors(error)
        return
    yield _chosen(path, manifest.total_bytes)
    best = as_object(state.get("train")).get("best_step")
    if config.training.load_best_model_at_end and isinstance(best, int) and not several:
        there = run.checkpoint(best)
        if not there.is_dir() and not (path.parent / there.name).is_dir():
            yield best_is_gone(there)
    if plan is not None:
        findings = _same_training(config, plan, saved, manifest, state)
        yield from findings
        if any(finding.code == codes.RESUME_OTHER_ALGORITHM.name for finding in findings):
            return
    if converted := of_another_program(state):
        yield from converted
        return
    # The same data and order, as far as they are known before the start
    now = _state_now(config, environ, plan, state)
    unknown = not_compared(state, definition())
    if unknown is not None:
        now.pop("data_fingerprint", None)
        yield unknown
    try:
        same_run(state, now)
    except PacelineError as error:
        for finding in error.diagnostics:
            yield replace(finding, where=_KEYS[finding.where])


def _same_training(
    config: Config, plan: Plan, saved: JsonObject, manifest: Manifest, state: JsonObject
) -> list[Diagnostic]:
    """Compare algorithm, model sizes, optimizer, strategy and global batch with those of the checkpoint."""
    other = other_training(state, plan, saved)
    if any(finding.code == codes.RESUME_OTHER_ALGORITHM.name for finding in other):
        return other
    return [
        *other,
        *_findings_of(lambda: keep_global_batch(state, plan)[1]),
        *_findings_of(lambda: other_layout(state, plan, manifest)),
        *requantised(state, plan),
        *_other_rows(config, plan, saved),
        *other_rollout(state, plan, config.training, manifest.tensors or ()),
    ]


def _other_rows(config: Config, plan: Plan, saved: JsonObject) -> Iterator[Diagnostic]:
    """Find a randomly initialised model whose vocabulary differs from the checkpoint's."""
    before, now = saved.get("vocab_size"), plan.shape.vocab if plan.shape else None
    tokenizer = config.model.tokenizer
    if not config.model.config or tokenizer is None or None in (before, now) or before == now:
        return
    # Before the start a tokenizer's rows are known only from a local folder; None for one of the hub
    if tokenizer_rows(Path(tokenizer).expanduser(), ()) is not None:
        yield codes.RESUME_OTHER_MODEL(
            "the checkpoint's embedding has another number of rows than the model that this run draws",
            plan.model_key,
            f"{before} in the checkpoint, {now} now",
            f"vocab_size: {before} in model.config, and the tokenizer it was saved with",
        )


def _is_elsewhere(where: str, url: str | None, run: RunDir) -> bool:
    """Whether the checkpoint to resume from seems to be at a URL and not on this disk yet."""
    if is_url(where):
        with suppress(ValueError):  # the rules name it
            return not run.fetched(parse_url(where).folder_name).is_dir()
        return True
    return bool(url) and where in (LATEST, AUTO_RESUME) and not scan(run.checkpoints)


def _on_all_nodes(run: RunDir) -> Diagnostic:
    return checkpoint_codes.RESUME_CHOSEN(
        "this node alone does not have a whole checkpoint: the ranks look for one on all nodes",
        "training.resume_from_checkpoint",
        str(run.checkpoints),
        severity=Severity.NOTE,
    )


def _chosen(path: Path, total: int) -> Diagnostic:
    small = total <= BEFORE_BYTES
    when = "before it starts a process" if small else "as it reads them, each on one rank"
    link = f", a link to {path.resolve()}" if path.is_symlink() else ""
    return checkpoint_codes.RESUME_CHOSEN(
        f"the run resumes from {path.name}{link}: all its files are there, with the sizes that were saved",
        "training.resume_from_checkpoint",
        f"{human_bytes(total)} in {path}: `paceline train` verifies every byte by its hash {when}",
        severity=Severity.NOTE,
    )


def _findings_of(check: Callable[[], list[Diagnostic]]) -> list[Diagnostic]:
    """Return the diagnostics that ``check`` returns or raises."""
    try:
        return check()
    except PacelineError as error:
        return list(error.diagnostics)


_KEYS = {
    "data_fingerprint": "data.train",
    "global_batch": "training.per_device_train_batch_size",
    "seq_len": "data.max_length",
    "packing": "data.packing",
    "seed": "training.seed",
}


def _state_now(
    config: Config, environ: Mapping[str, str], plan: Plan | None, state: JsonObject
) -> JsonObject:
    """Return those fields of the run state that ``same_run`` compares and that are known before the start."""
    spec = algorithm_spec(config.training.algorithm)
    now: JsonObject = {
        "seq_len": config.data.max_length,
        "packing": config.data.packing and spec.generation(config.training) is None,
        "seed": config.training.seed,
    }
    if plan is not None:
        now["global_batch"] = keep_global_batch(state, plan)[0].batch.global_batch
    cache = Path(config.data.cache_dir).expanduser() if config.data.cache_dir else cache_folder(environ)
    seed = config.training.seed if config.data.seed is None else config.data.seed
    fingerprint = train_fingerprint_of(
        config.data, config.model, seed, cache, kind=row_kind(spec.rows), most_bytes=MOST_BYTES
    )
    trained = state.get("train_fingerprint") or None  # another evaluation set does not matter
    if fingerprint is not None and trained is not None and fingerprint != trained:
        now["data_fingerprint"] = fingerprint
    return {field: now[field] for field in FIXED if field in now}
