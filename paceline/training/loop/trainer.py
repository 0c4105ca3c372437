"""The training loop: window → step → events → evaluate → save → stop.

It knows no strategy or algorithm by name.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch

from paceline.algorithms.algorithm import Algorithm
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError, PacelineError
from paceline.models.module_tensors import replaced
from paceline.plan.timeouts import STEP
from paceline.protocols.rollout import RolloutInterrupted
from paceline.protocols.window import Report, StepResult, UnreadResult, Window
from paceline.runlog import events
from paceline.runtime.device.device import memory_bytes, reserved_bytes
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.training import codes
from paceline.training.checkpointing.saver import RunCheckpointer
from paceline.training.loop.divergence_watch import DivergenceWatch, check_sampling, findings_of
from paceline.training.loop.intervals import Cadence, Garbage, collected_between_steps
from paceline.training.loop.nonfinite_trace import Trace
from paceline.training.loop.spike_watch import Spike, SpikeRule, SpikeWatch
from paceline.training.loop.throughput import Throughput
from paceline.training.loop.time_bands import BandClock
from paceline.training.loop.train_state import BestRule, TrainState
from paceline.training.loop.window_source import Epochs

EVALUATION, SAVE, ROLLOUT = "evaluate", "save", "rollout"  # phases of a heartbeat beside START and STEP
BINS = "eval_calibration/"  # metrics for a plot, not for text logs or trackers
ARRIVAL_SECONDS = 2.0  # for the numbers of the step before one that has failed
MAX_FAILED_SAVES = 2  # in a row; then the run fails rather than train on without checkpoints
MAX_ROLLBACKS = 5  # to the same checkpoint


@dataclass
class Hooks:
    """The run's callbacks for a trainer.

    ``emit`` gets every event. ``stop_requested`` is this rank's request, by a signal, and ``should_stop``
    that of its callbacks. ``doing`` gets the finished steps and the rank's current activity, which the
    heartbeat sends to find late ranks.
    """

    emit: Callable[[events.Event], None] = lambda event: None
    stop_requested: Callable[[], bool] = lambda: False
    should_stop: Callable[[], bool] = lambda: False
    doing: Callable[[int, str], None] = lambda step, phase: None

    def note(self, finding: Diagnostic) -> None:
        """Emit a finding."""
        self.emit(events.Notice(finding))


@dataclass(frozen=True)
class UnreadStep:
    """The step of ``window``, begun at ``begun`` (``time.perf_counter``); its call took ``seconds``.

    ``waited``: seconds until the window was there.
    """

    window: Window
    lr: float
    begun: float
    seconds: float
    result: UnreadResult
    waited: float

    def read(self, former: float) -> tuple[StepResult, float, float]:
        """Return the result, the seconds that the step took, and when it was done.

        Use the device's clock, since a late host reads the ends of two steps at once; without a device clock
        use the host's. ``former``: the end of the step before, at which the device began this one.
        """
        result = self.result.read()
        # After ``read``, which has waited for the copies: with a device clock the step was done before.
        done = time.perf_counter()
        # The result was there when the call returned (a CPU, or no late reading): the host's own clock is
        # right.
        if not self.result.under_way:
            return result, self.seconds, self.begun + self.seconds
        measured = self.result.seconds()
        return result, done - max(self.begun, former) if measured is None else measured, done


@dataclass
class Trainer:
    """One run on one rank; the worker passes in all that it needs.

    ``lr`` is a pure function of the 0-based step. ``evaluate`` and ``saves`` are collective: every rank calls
    them at the same step. ``late``: the results of a step are read, recorded and checked while the next step
    runs, if the device can copy them meanwhile. They are read first before a save, an evaluation, a stop and
    the end, and if the next step fails. Between steps the ranks agree on the requests of their hooks.
    """

    runner: Runner
    algorithm: Algorithm
    handles: Handles
    windows: Iterable[Window]  # a ``WindowSource``, or rollouts
    epochs: Epochs
    cadence: Cadence
    lr: Callable[[int], float]
    max_grad_norm: float
    seed_for: Callable[[int, int], int]  # (step, micro_step) -> seed
    throughput: Throughput
    device: torch.device
    agree: Callable[[bool], bool]
    best: BestRule
    state: TrainState = field(default_factory=TrainState)
    hooks: Hooks = field(default_factory=Hooks)
    inspect: Callable[[Window], None] | None = None  # called with every window before its step
    profile: Callable[[Window], AbstractContextManager[None]] | None = None  # around the step of a window
    evaluate: Callable[[], dict[str, float]] | None = None
    saves: RunCheckpointer | None = None
    any_rank: Callable[[bool], bool] = bool  # collective; whether a flag is True on any rank
    between: str = STEP  # what it does until a window is there
    late: bool = False
    max_sampling_gap: float | None = None
    rate_ratios: Mapping[str, float] = field(default_factory=dict)  # part of the model -> its rate over lr's
    spike_rule: SpikeRule = SpikeRule()
    rows_of: Callable[[int], Sequence[str]] = lambda step: ()  # names of the rows of a 0-based step
    go_back: Callable[[], tuple[TrainState, Iterable[Window]] | None] = lambda: None
    trace: Callable[[Window], Trace] | None = None  # collective; where a window is not finite
    bands: BandClock = field(default_factory=BandClock)
    failed_saves: int = 0
    saved_step: int = field(default=0, init=False)  # of the last save that was begun, or of the resume
    _unread: UnreadStep | None = None
    _done: float = 0.0  # when the last step that was read was done
    _spike: Spike | None = None  # for which the run goes back
    _rollbacks: dict[int, int] = field(default_factory=dict)  # step of a checkpoint -> how often

    def __post_init__(self) -> None:
        self.learning = DivergenceWatch(self.state, self.algorithm.loss_falls)
        self.spikes = SpikeWatch(self.spike_rule, self.state, self.algorithm.loss_falls)
        self.saved_step = self.state.step

    def train(self) -> str:
        """Train to the end. Collective.

        Returns ``completed``, ``early_stopped`` or (by a signal) ``stopped``; the last two leave a
        checkpoint. A run that was resumed after its last step, or after it was ended early, trains nothing.
        """
        # Before any window is made: a finished run must not start its loaders.
        if (ended := self.ended()) is not None:
            return ended
        try:
            return self._train()
        except RolloutInterrupted:
            if not self.any_rank(self.hooks.stop_requested()):
                raise
            return "stopped"  # its servers end with the launcher
        finally:
            self._emit_bands(last=True)

    def _emit_bands(self, *, last: bool = False) -> None:
        if (event := self.bands.due(self.state.step, last=last)) is not None:
            self.hooks.emit(event)

    def _train(self) -> str:
        with collected_between_steps() as garbage, self._nothing_lost():
            while (outcome := self._train_windows(garbage)) is None:
                pass  # the run has gone back to a checkpoint
        if outcome == "completed":
            self._settle(wait=True, must_succeed=True)
        return outcome

    def _train_windows(self, garbage: Garbage) -> str | None:
        """Train on the windows from ``state.step`` on; return None after a rollback."""
        # Closing ends the prefetching threads, also when the run goes back and makes new windows.
        with contextlib.closing(self.algorithm.windows(self.windows, self.handles)) as windows:
            self.hooks.doing(self.state.step, self.between)
            since = time.perf_counter()
            for window in windows:
                waited = time.perf_counter() - since
                self.hooks.doing(self.state.step, STEP)
                self._step(window, waited)
                self.bands.step(waited, time.perf_counter() - since - waited)
                if self._spike is not None and self._roll_back(self._spike):
                    return None
                if (outcome := self._between_steps()) is not None:
                    return outcome
                garbage.between_steps(self.state.step)
                self._emit_bands()
                self.hooks.doing(self.state.step, self.between)
                since = time.perf_counter()
            self._record()
        return "completed"

    def ended(self) -> str | None:
        """Return how the resumed run had already ended; None if steps are left."""
        if self.state.step >= self.cadence.total_steps:
            return "completed"
        early = self.state.stopped_by_callback or self.best.exhausted(self.state)
        return "early_stopped" if self.state.step and early else None

    def _step(self, window: Window, waited: float) -> None:
        if self.inspect is not None:
            self.inspect(window)
        lr = self.lr(window.step)
        # A step that a rollback leaves out: its recorded numbers are logged again, so that the curve has no
        # hole.
        if (passed := self.state.passed_at(window.step)) is not None:
            self._record()
            now, nothing = time.perf_counter(), UnreadResult(passed.result)
            self._unread = UnreadStep(window, lr, now, 0.0, nothing, waited)
            self.state.step = window.step + 1
            self._record()
            return
        with (
            self.profile(window) if self.profile is not None else contextlib.nullcontext(),
            replaced(self.runner.strategy, limit=self.spikes.limit())
            if self.spike_rule.skips
            else contextlib.nullcontext(),
        ):
            started = time.perf_counter()
            unread = self.runner.start_window(
                self.handles,
                window.micro_batches,
                self.algorithm,
                lr=lr,
                max_grad_norm=self.max_grad_norm,
                generator_seed=lambda micro_step: self.seed_for(window.step, micro_step),
            )
            if not self.late:
                unread.read()
            seconds = time.perf_counter() - started
        # Only now, with the next step enqueued, does the host read results: the device never runs out of
        # work.
        self._record()  # the step before, which state.step still names
        self._unread = UnreadStep(window, lr, started, seconds, unread, waited)
        self.state.step = window.step + 1
        if not (self.late and unread.under_way):
            self._record()

    def _record(self, *, alone: bool = False) -> None:
        """Record and check step ``state.step``, unless that was done. ``alone``: the other ranks may be
        elsewhere, so that nothing is traced with them.
        """
        if self._unread is None:
            return
        trace = None if alone else self.trace
        step, self._unread = self._unread, None
        result, seconds, self._done = step.read(self._done)
        if step.window.report is not None:
            result = self._report(step.window.step + 1, step.window.report, result, seconds)
            seconds += step.window.report.seconds
        # Before the event and the checks, for a check may raise, and the state is what gets saved.
        self.state.tokens += result.tokens
        event = events.Step(
            step=self.state.step,
            epoch=self.epochs.progress(self.state.step),
            loss=sum(result.losses.values()),
            losses=dict(result.losses),
            weights=dict(result.weights),
            lr=step.lr,
            grad_norm=result.grad_norm,
            tokens=result.tokens,
            step_seconds=seconds,
            tokens_per_second=self.throughput.tokens_per_second(result.tokens, seconds),
            **self.throughput.utilisation(result.tokens, seconds),
            memory_bytes=memory_bytes(self.device),
            reserved_bytes=reserved_bytes(self.device),
            data_seconds=step.waited
            if step.window.report is None
            else None,  # rollouts have times of their own
            skipped=result.skipped,
            sample_digest=step.window.sample_digest,
            extras={
                **result.extras,
                **{f"learning_rate/{part}": step.lr * ratio for part, ratio in self.rate_ratios.items()},
            },
        )
        self.hooks.emit(event)
        # After the event: the log has the numbers of the step that ends the run.
        check_sampling(result, self.state.step, self.max_sampling_gap)
        for finding in (
            *findings_of(step.window, result, step.lr, self.state, trace),
            *self.learning.observe(result),
            *self._spike_findings(step.window.step, result),
        ):
            self.hooks.note(finding)

    def _spike_findings(self, step: int, result: StepResult) -> list[Diagnostic]:
        """Return what is to be said of a spike; one for which the run goes back is kept until then."""
        if (spike := self.spikes.observe(step, result)) is None:
            return []
        if result.skipped is not None:
            left_out = "its rows are left out" if self.state.passed_at(step) else "its step was not made"
            return [spike.finding(left_out, self.rows_of(step), "")]
        if self.spike_rule.rolls_back:
            self._spike = spike
            return []
        return self.spikes.warning(spike, self.rows_of(step))

    def _roll_back(self, spike: Spike) -> bool:
        """Go back to the newest checkpoint, from which the rows of ``spike`` are left out; return whether
        there was one. Collective.
        """
        self._spike = None
        self._settle(wait=True)
        rows = self.rows_of(spike.step)
        passed = (*self.state.passed, spike.passed)
        if (restored := self.go_back()) is None:
            stays = "there is no checkpoint to go back to, so the step stays"
            self.hooks.note(spike.finding(stays, rows, "set training.save_steps below the first spike"))
            return False
        state, self.windows = restored
        # Both are 0-based: the steps between checkpoint and spike are made once more.
        again = spike.step - state.step
        outcome = f"the run is back at step {state.step}, trains {again} steps again, and leaves its rows out"
        self.hooks.note(spike.finding(outcome, rows, ""))
        self._rollbacks[state.step] = self._rollbacks.get(state.step, 0) + 1
        if self._rollbacks[state.step] > MAX_ROLLBACKS:
            raise PacelineError(
                codes.TRAINING_SPIKES_STAY(
                    f"step {spike.step + 1}", spike.found, count=MAX_ROLLBACKS, saved=state.step
                )
            )
        # In place, as the watches, the checkpointer and the schedules hold this object.
        self.state.take(state)
        self.state.passed = passed
        self.saved_step = state.step
        # Anew: its recent losses are those of steps that are made again.
        self.learning = DivergenceWatch(self.state, self.algorithm.loss_falls)
        return True

    @contextlib.contextmanager
    def _nothing_lost(self) -> Iterator[None]:
        """If a step fails inside, record the earlier step, and report it if it went wrong first.

        If no answers can be generated, save the trained state.
        """
        try:
            yield
        except RolloutInterrupted:
            # Not twice at one step: the checkpoint's folder exists already.
            if self.saves is not None and self.state.step > self.saved_step:
                self._save(self.saves, self.state.step, must_succeed=True)
            raise
        except BaseException as error:
            # A hung device never delivers: without the limit the first error would not be raised.
            if self._unread is not None and self._unread.result.arrives(ARRIVAL_SECONDS):
                with contextlib.suppress(*(() if isinstance(error, Exception) else (PacelineError,))):
                    self._record(alone=True)
            raise

    def _report(self, step: int, report: Report, result: StepResult, seconds: float) -> StepResult:
        """Emit the report of the work before a step, and return the step's result with its metrics added."""
        for note in report.notes:
            self.hooks.note(note)
        if report.samples:
            self.hooks.emit(events.Samples(step, report.samples))
        return replace(result, extras={**result.extras, **report.metrics, "time/train": seconds})

    def _between_steps(self) -> str | None:
        """Agree on stopping, then evaluate and save when due. Collective."""
        step = self.state.step
        # Ranks get a signal at different times. They agree on the step to stop at, or one would wait in a
        # collective for ever.
        stop = self.agree(self.hooks.stop_requested() or self.hooks.should_stop())
        signalled = stop and self.any_rank(self.hooks.stop_requested())
        self.state.stopped_by_callback = stop and not signalled
        if stop:
            self._record()
        # An asynchronous save that failed is reported at the next step, not at the end of the run.
        self._settle(wait=False)
        epoch_end = self.epochs.is_epoch_end(step)
        improved = exhausted = False
        if not stop and self.evaluate is not None and self.cadence.evaluates(step, epoch_end):
            improved = self.best.record(self.measure(), self.state)
            exhausted = self.best.exhausted(self.state)
        # A signal saves also where saving is off: the run can go on from there
        # The last checkpoint of an ended run, whatever the interval.
        last = signalled or ((stop or exhausted) and self.cadence.saves_at_all)
        if self.saves is not None and (last or self.cadence.saves(step, epoch_end, improved)):
            self._save(self.saves, step, must_succeed=last or step == self.cadence.total_steps)
        if signalled:
            return "stopped"
        exhausted |= stop
        return "early_stopped" if exhausted and step < self.cadence.total_steps else None

    def measure(self) -> dict[str, float]:
        """Evaluate now and notify the observers, without updating the best metric."""
        assert self.evaluate is not None
        self._record()
        self.hooks.doing(self.state.step, EVALUATION)
        started = time.perf_counter()
        metrics = self.evaluate()
        seconds = time.perf_counter() - started
        self.bands.evaluated(seconds)
        # A count rides along with the metrics and is no metric.
        rows = int(metrics.pop("eval_rows", 0))
        # a curve for the plot, not numbers for text logs
        bins = {name.removeprefix(BINS): metrics.pop(name) for name in list(metrics) if name.startswith(BINS)}
        self.hooks.emit(events.Eval(self.state.step, metrics, seconds, rows=rows, bins=bins))
        return metrics

    def _save(self, saves: RunCheckpointer, step: int, *, must_succeed: bool) -> None:
        """Save a checkpoint, or start a save; at most one save runs at a time."""
        self._record()
        self.hooks.doing(step, SAVE)
        self._settle(wait=True)
        self.saved_step = step
        self._counted(lambda: saves.save(step), must_succeed=must_succeed)
        if must_succeed:
            self._settle(wait=True, must_succeed=True)

    def _settle(self, *, wait: bool, must_succeed: bool = False) -> None:
        """Get the result of a save during training, if it has ended; else ``wait`` for it."""
        if (saves := self.saves) is not None:
            if wait:
                self.hooks.doing(self.state.step, SAVE)
            self._counted(lambda: saves.settle(wait=wait), must_succeed=must_succeed)

    def _counted(self, work: Callable[[], bool], *, must_succeed: bool) -> None:
        """Run ``work``, a part of a save that returns whether a checkpoint has become durable; count
        failures.

        A failure never touches earlier ones; training continues until MAX_FAILED_SAVES in a row.
        """
        try:
            with self.bands.saving():
                durable = work()
            if durable:
                self.failed_saves = 0
        except CheckpointError as error:
            self.failed_saves += 1
            # One full disk or lost mount is a warning; a second in a row would lose hours of training.
            if must_succeed or self.failed_saves >= MAX_FAILED_SAVES:
                raise
            for finding in error.diagnostics:
                self.hooks.note(replace(finding, severity=Severity.WARNING))


def ended_early(trainer: Trainer) -> str:
    """Return why a run ended before its last step, other than by a signal."""
    why = (
        "a callback requested it"
        if trainer.state.stopped_by_callback
        else f"{trainer.best.metric} has not improved in {trainer.best.patience} evaluations"
        " (training.early_stopping_patience)"
    )
    return f"ended early at step {trainer.state.step} of {trainer.cadence.total_steps}: {why}"
