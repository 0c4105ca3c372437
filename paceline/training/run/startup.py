"""Before the first step: prepare the data, check the store's secret, and log facts about the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch.distributed as dist
from rich.console import Console

from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.package import cache_folder
from paceline.core.security.file_permissions import written_for
from paceline.core.units import human_bytes, human_count, human_seconds
from paceline.data.prepare.main import Bar, summary
from paceline.data.prepare.prepare import Prepared, prepare
from paceline.data.rows.kinds.base import row_kind
from paceline.launch.prediction_ledger import expected
from paceline.launch.processes import MARK
from paceline.launch.program import terminal
from paceline.launch.run_secret import read_secret, unsigned
from paceline.models.attention.kernel_choice import activate_flash
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.runlog.lines import overview_line
from paceline.runlog.redact import Redactor
from paceline.runtime.process_group.rendezvous import refuse
from paceline.runtime.process_group.world import World
from paceline.runtime.rank_env import RankEnv
from paceline.training.errors import diagnose
from paceline.training.loop.intervals import EVERY
from paceline.training.loop.trainer import Trainer
from paceline.training.reporting.observers import Observers
from paceline.training.run.record import RunRecord


def prepare_data(config: Config, plan: Plan, rank: int, environ: Mapping[str, str]) -> Prepared:
    """Tokenize the rows to disk.

    The first process does it, and the others wait for its file lock: there is no process group yet that could
    time out.
    """
    data, seed = config.data, config.training.seed
    cache = Path(data.cache_dir).expanduser() if data.cache_dir else cache_folder(environ)
    tokenized = partial(
        prepare,
        data,
        config.model,
        seed=seed if data.seed is None else data.seed,
        cache_dir=cache,
        kind=row_kind(algorithm_spec(plan.algorithm).rows),
        vision=plan.vision,
        max_positions=(plan.shape.max_position_embeddings or None) if plan.shape else None,
    )
    with written_for(cache, config.training.output_access):
        if rank != 0:
            return tokenized()
        with Bar(Console(file=terminal(sys.stdout))) as bar:
            return tokenized(report=bar)


def report_to_other_nodes(
    env: RankEnv, environ: Mapping[str, str], error: BaseException, hosted: dist.Store | None
) -> None:
    """Tell the other nodes, which wait, why this one has no data. ``hosted``: the store, if it is here."""
    if env.num_nodes == 1:
        return
    if not isinstance(error, PacelineError):
        error = PacelineError(Redactor.of(environ).diagnostic(diagnose(error, env.rank)))
    try:
        secret = read_secret(environ)
    except ConfigError:
        secret = b""
    refuse(env, secret, error, hosted=hosted)


def _unsigned_store(run: RunRecord) -> Diagnostic | None:
    """Return the finding that messages are not signed; None if our own launcher has reported it."""
    if MARK in run.environ:
        return None
    env, allowed = run.env, run.config.launch.allow_unsigned_store
    return unsigned(run.environ, env.num_nodes, env.world_size, ours=False, allowed=allowed)


def refuse_unsigned(run: RunRecord) -> None:
    """Raise ConfigError, before this rank waits for others, where the store must not be unsigned."""
    finding = _unsigned_store(run)
    if finding is not None and finding.severity is Severity.ERROR:
        error = ConfigError(finding)
        refuse(run.env, b"", error, hosted=run.hosted)  # another node may have a secret
        raise error


def log_start(
    world: World, run: RunRecord, observers: Observers, settings: Mapping[str, tuple[str, str]]
) -> None:
    """Log this rank's facts: free memory, links, variables set (``settings``), activated kernels."""
    flash = activate_flash(run.plan.flash)
    if world.rank == 0:
        free = world.free_bytes
        for line in (
            *([f"memory    {human_bytes(free)} of this device were free at the start"] if free else []),
            *world.links,
            *(f"set       {name}={value}: {why}" for name, (value, why) in settings.items()),
            f"garbage   Python's is collected between steps, every {EVERY} steps",
        ):
            observers.detail(line)
    if world.bound:
        observers.detail(world.bound)
    if flash and world.rank == 0:
        observers.detail(f"attention {flash}")
    of_ranks = (*world.notes, *run.disks.notes(run.run_dir.root)) if world.rank == 0 else ()
    for note in (*of_ranks, *run.start.notes, *run.prepared.notes, *filter(None, (_unsigned_store(run),))):
        observers.note(note)


def log_data(run: RunRecord, observers: Observers) -> None:
    """Log a summary of the data before the first step."""
    t = run.config.training
    for line in summary(
        run.prepared,
        row_kind(algorithm_spec(run.plan.algorithm).rows),
        seq_len=run.plan.seq_len,
        packing=run.plan.packing,
        seed=t.seed if t.data_seed is None else t.data_seed,
        seconds=run.prepare_seconds,
    ):
        observers.detail(line)


def log_overview(run: RunRecord, trainer: Trainer, observers: Observers) -> None:
    """Print the last two lines of the overview: the length of the training, and notes for the user."""
    if observers.rank != 0:
        return
    state, total, counts = trainer.state, trainer.cadence.total_steps, run.prepared.counts
    documents = f"{counts.train_documents:,} documents, {human_count(counts.tokens)} tokens in all"
    begun = f" from step {state.step:,}" if state.step else ""
    parts = [f"{total:,} steps{begun}; {documents}"]
    if numbers := expected(run.plan, run.environ):
        row = run.plan.seq_len * algorithm_spec(run.plan.algorithm).documents_a_row
        # Of full rows, as the prediction is.
        tokens = max(0, total - state.step) * run.plan.batch.global_batch * row
        parts.append(f"about {human_seconds(tokens / numbers.tokens_per_second)} expected")
    observers.message(overview_line("how long", "; ".join(parts)))
    observers.message(overview_line("look at", _to_look_at(run.plan, observers)))


def _to_look_at(plan: Plan, observers: Observers) -> str:
    """Return the notes from before the first step, and the settings that are not applied."""
    notes = observers.early_notes
    places = [f"{note.where}: " if note.where else "" for note in notes]
    parts = [f"{place}{note.what} [{note.code}]" for place, note in zip(places, notes, strict=True)]
    parts += [f"{d.subject} is not applied: {d.reason}" for d in plan.decisions if not d.granted]
    return (
        "; ".join(parts) or "nothing (--verbose or PACELINE_VERBOSE=1 prints every decision and its reason)"
    )


def log_models(trainer: Trainer, observers: Observers, subjects: Sequence[str] = ()) -> None:
    """Log the notes of the trained models, of the ``subjects`` alone if given."""
    for role in trainer.algorithm.trains:
        notes = trainer.handles[role].root.notes()
        for subject in subjects or notes:
            if subject in notes:
                observers.detail(f"{subject:<9} {notes[subject]}")
