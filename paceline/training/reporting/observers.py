"""Receivers of a run's events: event log and text logs on every rank, console and trackers on rank 0.

They also check that the run directory is unchanged and its newest checkpoint still exists.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from paceline.config.schema import Config
from paceline.config.sections.training_steps import every
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import PacelineError
from paceline.core.rundir import RunDir
from paceline.runlog import codes, events
from paceline.runlog.library_lines import listen
from paceline.runlog.lines import is_verbose, samples_lines
from paceline.runlog.log import RunLog, is_written
from paceline.runlog.redact import Redactor
from paceline.runtime.failures.heartbeat import Heartbeat
from paceline.training.reporting.callbacks import Callbacks, UserCallback
from paceline.training.reporting.console import Console
from paceline.training.reporting.tracker_backends import TrackedRun
from paceline.training.reporting.trackers import Trackers, open_trackers


class RunDirWatch:
    """Remember the folder by device, inode and name.

    Some object-store file systems assign new inodes; then the name decides. Raises OSError if the folder does
    not exist.
    """

    def __init__(self, run: RunDir) -> None:
        self._root = run.root
        self._fd = os.open(run.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._is = _identity(os.fstat(self._fd))
        self._name = _name(self._fd)
        self._checkpoint: Path | None = None

    def expects(self, checkpoint: str) -> None:
        """Set the newest checkpoint, which only the publication of a later one may remove."""
        self._checkpoint = Path(checkpoint)

    def check(self) -> Diagnostic | None:
        """Return a warning, once, if the newest checkpoint is gone.

        Raises PacelineError (``run.folder_gone``) if the folder was deleted, moved or replaced.
        """
        try:
            there = _identity(self._root.stat())
        except (FileNotFoundError, NotADirectoryError):
            there = None
        except OSError:  # a file server that is briefly unavailable: writes report their own errors
            return None
        if there is None or (there != self._is and (not self._name or _name(self._fd) != self._name)):
            raise PacelineError(self._gone(there is not None))
        if self._checkpoint is not None and not self._checkpoint.is_dir():
            missing, self._checkpoint = self._checkpoint, None
            return codes.RUN_CHECKPOINT_GONE(str(missing))
        return None

    def close(self) -> None:
        """Release the folder. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _gone(self, replaced: bool) -> Diagnostic:
        now = _now_at(self._fd)
        if now:
            message, state = (
                (
                    "the run's folder was moved during training: checkpoints would be written to the"
                    " wrong place"
                ),
                f"it is now {now}",
            )
            remedy = (
                "move it back and resume with --resume latest, or with training.output_dir set to"
                f" its new place: {now}"
            )
        else:
            message = (
                "the run's folder was deleted during training: its logs, events and checkpoints are lost"
            )
            state = "another folder with that name" if replaced else "no such folder"
            remedy = "start again; leave the folder of a run in place until it has ended"
        return codes.RUN_FOLDER_GONE(message, str(self._root), state, remedy)


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _name(fd: int) -> str:
    """Return the path of an open folder according to the kernel; empty if unknown."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _now_at(fd: int) -> str:
    """Return the current path of an open folder; empty if it is deleted or unknown."""
    path = _name(fd)
    try:
        return path if path and _identity(os.stat(path)) == _identity(os.fstat(fd)) else ""
    except OSError:
        return ""


class Observers:
    """Opens, feeds and closes the receivers."""

    def __init__(
        self,
        run: RunDir,
        rank: int,
        config: Config,
        environ: Mapping[str, str],
        redact: Redactor,
        *,
        leads: bool = True,
    ) -> None:
        """``leads``: this is the first rank of its node, which watches the run directory.

        Raises OSError if the logs cannot be opened.
        """
        self.rank, self.run, self.config, self.redact = rank, run, config, redact
        self.log = RunLog(run, rank, self.redact, config.training.log_level, warn=self._warn, leads=leads)
        listen(self.log.message)
        self._place = RunDirWatch(run) if leads else None
        self.heartbeat = Heartbeat(run.heartbeat(rank)).start()
        self.console: Console | None = None
        self.trackers: Trackers | None = None
        self.callbacks: Callbacks | None = None
        self.logging_steps = 1
        self.verbose = is_verbose(environ) or is_written("debug", config.training.log_level)
        self.early_notes: list[Diagnostic] = []  # of rank 0 before the first step, for the overview
        self.abandoned: tuple[str, ...] = ()  # trackers that may hang an exit
        self._log_closed = False
        self._environ = environ
        self._started = 0.0

    def begin(self, event: events.RunStarted) -> None:
        """Start the run: open console, trackers and callbacks.

        Raises PacelineError if a callback cannot be made.
        """
        t = self.config.training
        total = event.total_steps or 0
        self.logging_steps = every(t.logging_steps, max(total, 1))
        if self.rank == 0:
            self.console = Console(
                total,
                enabled=True,
                logging_steps=self.logging_steps,
                logging_first_step=t.logging_first_step,
                start_step=event.start_step,
                redact=self.redact,
                least=t.log_level,
            )
            self.trackers = open_trackers(
                t.report_to,
                TrackedRun(
                    self.run,
                    self.redact(t.run_name or self.run.root.name),
                    self.redact.data(self.config.to_json()),
                    start_step=event.start_step,
                ),
                project=t.project,
                environ=self._environ,
                report=self._note_of_tracker,
            )
        parts = [UserCallback(callback.name, dict(callback.options)) for callback in t.callbacks]
        self.callbacks = Callbacks(parts, self.rank, self._note_of_any_rank)
        self.log.write(event)
        self.detail(event.description)

    def hear(self, event: events.Event) -> None:
        """Record one event of the trainer."""
        if isinstance(event, events.Step):
            self.check_place()
        elif isinstance(event, events.CheckpointSaved) and self._place is not None:
            self._place.expects(event.path)
        # Event log: every event; only some steps get a text line
        logs = not isinstance(event, (events.Step, events.Samples)) or self.is_logged(event)
        self.log.write(event, level="" if logs else "debug")
        # Console and trackers exist on rank 0 only
        early = self.console is None and self.rank == 0  # before the first step
        if early and isinstance(event, events.Notice):
            finding = event.diagnostic
            if is_written(finding.severity.value, self.config.training.log_level):
                short = finding.severity is Severity.NOTE and not finding.hint
                if short and not self.verbose:
                    self.early_notes.append(finding)
                else:
                    print(self.redact(finding.render()), flush=True)
        if self.console is not None:
            if isinstance(event, events.Step):
                self.console.step(event)
            elif isinstance(event, events.Eval):
                self.console.eval(event)
            elif isinstance(event, events.Notice):
                self.console.note(event.diagnostic)
            elif isinstance(event, events.Samples) and logs:
                self.console.message(samples_lines(event))
        if logs and self.trackers is not None and isinstance(event, (events.Step, events.Eval)):
            self.trackers.log(event.step, scalars(event))
        if self.callbacks is not None:
            self.callbacks.hear(event)

    def should_stop(self) -> bool:
        """Whether a callback of this rank asks to stop the training."""
        return self.callbacks is not None and self.callbacks.should_stop()

    def _note_of_any_rank(self, diagnostic: Diagnostic) -> None:
        """Record a finding about this rank's own parts; ranks without a console print it, too."""
        self.note(diagnostic)
        if self.rank != 0:
            print(self.redact(diagnostic.render()), file=sys.stderr, flush=True)

    def _note_of_tracker(self, diagnostic: Diagnostic) -> None:
        """Record a finding about a tracker; after a failure of the run, print it."""
        (self._warn if self._log_closed else self.note)(diagnostic)

    def _close_trackers(self) -> None:
        if self.trackers is not None:
            self.trackers.close()
            self.abandoned = self.trackers.abandoned
            self.trackers = None

    def check_place(self) -> None:
        """Raise PacelineError if the run directory has been moved or replaced."""
        gone = self._place.check() if self._place is not None else None
        if gone is not None:
            self.note(gone)

    def _warn(self, diagnostic: Diagnostic) -> None:
        """Report problems of the logs themselves: on the console, or on stderr for ranks other than 0."""
        if self.console is not None:
            self.console.note(diagnostic)
        else:
            print(self.redact(diagnostic.render()), file=sys.stderr, flush=True)

    def is_logged(self, event: events.Step | events.Samples) -> bool:
        """Whether this step gets a text line (every step is in the event log)."""
        first = event.step == 1 and self.config.training.logging_first_step
        return first or event.step % self.logging_steps == 0 or getattr(event, "skipped", None) is not None

    def note(self, diagnostic: Diagnostic) -> None:
        self.hear(events.Notice(diagnostic))

    def message(self, text: str) -> None:
        """Log a line, and print it on rank 0."""
        self.log.message(text)
        if self.console is not None:
            self.console.message(text)

    def detail(self, text: str) -> None:
        """Log a line, and print it on rank 0 of a verbose run."""
        if self.verbose:
            self.message(text)
        else:
            self.log.message(text)

    def finish(self, event: events.Finished, checkpoint: str) -> None:
        """Record a successful end and close the logs."""
        self.hear(event)
        if self.callbacks is not None:
            self.callbacks.close()
            self.callbacks = None
        self._close_trackers()  # while the log can still hold what they did not get
        lost = self.log.lost()
        if lost is not None:
            self._warn(lost)
        self.close()
        self.log.close()

    def failed(self, event: events.Error, trace: str) -> None:
        """Record a failure; it is written when this returns.

        ``close`` closes the trackers, which may take seconds.
        """
        if trace:
            self.log.rank_text.line(trace, "error")
        self.log.write(event)
        self._log_closed = True
        self.log.close()

    def close(self) -> None:
        """Close everything but the log files."""
        listen(None)
        self.heartbeat.stop()
        self._close_trackers()
        if self.console is not None:
            self.console.close()
            self.console = None
        if self._place is not None:
            self._place.close()
            self._place = None


def scalars(event: events.Step | events.Eval) -> dict[str, float]:
    """Return the numbers of an event, under the names that trackers show."""
    if isinstance(event, events.Eval):
        return {f"eval/{name.removeprefix('eval_')}": value for name, value in event.metrics.items()}
    numbers: dict[str, float | None] = {
        "train/loss": event.loss,
        "train/learning_rate": event.lr,
        "train/grad_norm": event.grad_norm,
        "train/epoch": event.epoch,
        "speed/tokens_per_second": event.tokens_per_second,
        "speed/step_seconds": event.step_seconds,
        "speed/data_seconds": event.data_seconds,
        "speed/mfu": event.mfu,
        "speed/of_timed_product": event.of_product,
        "memory/bytes": float(event.memory_bytes) if event.memory_bytes is not None else None,
        "memory/reserved_bytes": float(event.reserved_bytes) if event.reserved_bytes is not None else None,
        **{f"train/{name}": value for name, value in event.extras.items()},
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}
