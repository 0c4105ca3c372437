"""The events of all attempts of a run as one history: steps repeated after a resume count once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.core.rundir import RunDir
from paceline.runlog.events import (
    Answers,
    CheckpointSaved,
    Error,
    Eval,
    Finished,
    Record,
    RunStarted,
    Step,
    read_events,
)

MAX_RANKS = 100_000  # the first rank without a file ends the search


@dataclass
class History:
    """Rank 0's events in step order.

    - ``seconds``: time of all attempts, without the pauses between them
    - ``peak_memory``: by step, the maximum over ranks
    - ``restarts``: the steps at which attempts after the first began
    """

    seconds: float = 0.0
    started: RunStarted | None = None
    finished: Finished | None = None
    steps: dict[int, Step] = field(default_factory=dict)
    evals: dict[int, Eval] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointSaved] = field(default_factory=dict)
    answers: dict[int, Answers] = field(default_factory=dict)
    errors: list[Error] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    peak_memory: dict[int, int] = field(default_factory=dict)
    num_ranks: int = 0

    @property
    def last_step(self) -> int:
        """The last finished step; 0 if there is none."""
        return max(self.steps, default=0)

    @property
    def outcome(self) -> str:
        """``completed``, ``stopped``, ``failed`` …; ``running`` while the last attempt has not ended."""
        if self.finished is not None:
            return self.finished.outcome
        return "failed" if self.errors else "running"


def load_history(run: RunDir) -> History:
    """Read every rank's events of ``run``; a missing or empty run gives an empty history."""
    history = History()
    before: float | None = None
    for record in read_events(run.events(0)):
        if before is not None and not isinstance(record.event, RunStarted):
            history.seconds += max(0.0, record.time - before)
        before = record.time
        _take(history, record)
    history.steps = dict(sorted(history.steps.items()))
    # From every rank: peak memory, and errors that rank 0 did not write.
    for rank, records in _ranks(run).items():
        history.num_ranks = max(history.num_ranks, rank + 1)
        _take_other(history, rank, records)
    return history


def _take(history: History, record: Record) -> None:
    event = record.event
    if isinstance(event, RunStarted):
        _begin(history, event)
    elif isinstance(event, Step):
        history.steps[event.step] = event
    elif isinstance(event, Eval):
        history.evals[event.step] = event
    elif isinstance(event, CheckpointSaved):
        history.checkpoints[event.step] = event
    elif isinstance(event, Answers):
        history.answers[event.step] = event
    elif isinstance(event, Error):
        history.errors.append(event)
    elif isinstance(event, Finished):
        history.finished = event


def _begin(history: History, event: RunStarted) -> None:
    """Start a new attempt; later steps of earlier attempts are dropped, as an abandoned branch."""
    if history.started is not None:
        history.restarts.append(event.start_step)
    history.started, history.finished = event, None
    history.errors.clear()
    kept: tuple[dict[int, Step], dict[int, Eval]] = (history.steps, history.evals)
    for table in kept:
        for step in [s for s in table if s > event.start_step]:
            del table[step]


def _ranks(run: RunDir) -> Mapping[int, list[Record]]:
    if not run.events_dir.is_dir():
        return {}
    ranks: dict[int, list[Record]] = {}
    for rank in range(MAX_RANKS):
        if not run.events(rank).exists():
            break
        ranks[rank] = read_events(run.events(rank))
    return ranks


def _take_other(history: History, rank: int, records: list[Record]) -> None:
    """Take each rank's memory, and errors that rank 0 may not have written before it died."""
    # Only the last attempt's errors count; memory counts for steps of the history.
    reported = {(e.rank, e.diagnostic.code, e.diagnostic.what) for e in history.errors}
    memory: dict[int, int] = {}
    errors: list[Error] = []
    for record in records:
        event = record.event
        if isinstance(event, RunStarted):
            errors.clear()
        elif isinstance(event, Step) and event.memory_bytes is not None:
            memory[event.step] = event.memory_bytes
        elif isinstance(event, Error):
            errors.append(event)
    for step, used in memory.items():
        if step in history.steps:
            history.peak_memory[step] = max(used, history.peak_memory.get(step, 0))
    history.errors += [
        e for e in errors if rank > 0 and (e.rank, e.diagnostic.code, e.diagnostic.what) not in reported
    ]
