"""Training state beyond weights and optimizer: a few numbers, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from paceline.config.registries.evaluation_metrics import greater_is_better
from paceline.config.sections.training import TrainingSection
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.plan.plan_json import from_json, to_json
from paceline.protocols.window import SPIKE, StepResult
from paceline.training import codes


@dataclass(frozen=True)
class PassedStep:
    """A spike whose rows a rollback leaves out: its 0-based step, and what it measured when it was made."""

    step: int
    losses: Mapping[str, float]
    weights: Mapping[str, int]
    grad_norm: float
    tokens: int

    def result(self) -> StepResult:
        """Return the result of the step that is not made again."""
        return StepResult(self.losses, self.weights, self.grad_norm, SPIKE, self.tokens)


_HISTORIES = (
    "recent_losses",
    "recent_norms",
    "recent_weights",
    "passed",
)  # for the run that goes on, not for readers


@dataclass
class TrainState:
    """``step`` counts finished optimizer steps, including skipped ones; the data position follows from it
    (contract 4).
    """

    step: int = 0
    tokens: int = 0
    best_metric: float | None = None
    best_step: int | None = None
    evals_without_gain: int = 0
    skipped_no_labels: int = 0
    skipped_overflow: int = 0
    trained_steps: int = 0  # those with an update, and so a gradient norm
    steps_without_gradient: int = 0  # of those; see ``training.loop.divergence_watch``
    first_loss: float | None = None
    stopped_by_callback: bool = False  # which ended the run after this step
    spikes: int = 0  # steps that were spikes; see ``training.loop.spike_watch``
    skipped_spikes: int = 0  # of those
    recent_losses: tuple[float, ...] = ()
    recent_norms: tuple[float, ...] = ()
    recent_weights: tuple[float, ...] = ()
    passed: tuple[PassedStep, ...] = ()

    def to_json(self) -> JsonObject:
        return to_json(self)

    def facts(self) -> JsonObject:
        """Return the numbers for ``result.json``."""
        return {name: value for name, value in self.to_json().items() if name not in _HISTORIES}

    def remember(self, loss: float, norm: float, weight: float, window: int, *, is_spike: bool) -> None:
        """Keep the last ``window`` losses, weights and norms; a norm of 0 says nothing of the others."""
        self.spikes += is_spike
        self.recent_weights = (*self.recent_weights, weight)[-window:]
        self.recent_losses = (*self.recent_losses, loss)[-window:]
        if norm > 0:
            self.recent_norms = (*self.recent_norms, norm)[-window:]

    def passed_at(self, step: int) -> PassedStep | None:
        """Return the record of the 0-based ``step`` if its rows are left out."""
        return next((passed for passed in self.passed if passed.step == step), None)

    def take(self, other: TrainState) -> None:
        """Become ``other``; who holds this object goes on with it."""
        for f in fields(TrainState):
            setattr(self, f.name, getattr(other, f.name))

    @staticmethod
    def from_json(data: JsonObject) -> TrainState:
        names = {f.name for f in fields(TrainState)}
        # Unknown keys are those of a later release: its checkpoints still resume here.
        return from_json(TrainState, {k: v for k, v in data.items() if k in names})


@dataclass(frozen=True)
class BestRule:
    """Decides which evaluation is the best so far, and when to stop early."""

    metric: str = "eval_loss"
    greater_is_better: bool = False
    patience: int | None = None
    threshold: float = 0.0

    def improved(self, value: float, best: float | None) -> bool:
        """Whether ``value`` beats ``best`` at all (NaN never does)."""
        # NaN, the only number that differs from itself.
        if value != value:
            return False
        return best is None or (value > best if self.greater_is_better else value < best)

    def counts_as_gain(self, value: float, best: float | None) -> bool:
        """Whether the improvement exceeds ``early_stopping_threshold`` (the rule of Transformers'
        EarlyStoppingCallback).
        """
        return self.improved(value, best) and (best is None or abs(value - best) > self.threshold)

    def exhausted(self, state: TrainState) -> bool:
        """Whether early stopping ends the run."""
        return self.patience is not None and state.evals_without_gain >= self.patience

    def record(self, metrics: Mapping[str, float], state: TrainState) -> bool:
        """Record an evaluation in ``state``; return whether it is the best so far.

        Raises KeyError for an unmeasured metric.
        """
        value = metrics[self.metric]
        # Two questions: a tiny improvement is the best checkpoint, but does not reset the patience.
        gain, better = self.counts_as_gain(value, state.best_metric), self.improved(value, state.best_metric)
        state.evals_without_gain = 0 if gain else state.evals_without_gain + 1
        if better:
            state.best_metric, state.best_step = value, state.step
        return better


def best_rule(training: TrainingSection, names: Sequence[str]) -> BestRule:
    """Return the rule for ``metric_for_best_model`` (default eval_loss), with Transformers' default
    direction: greater is better unless the name ends in ``loss``.

    Raises ConfigError if no evaluation yields it (``names`` are those that do).
    """
    metric = training.metric_for_best_model or ("loss" if "eval_loss" in names else names[0])
    metric = metric if metric.startswith("eval_") else f"eval_{metric}"
    if metric not in names:
        raise ConfigError(
            codes.TRAINING_METRIC_FOR_BEST_MODEL(
                "training.metric_for_best_model", metric, names=", ".join(names)
            )
        )
    configured = training.greater_is_better
    greater = configured if configured is not None else greater_is_better(metric) is not False
    return BestRule(metric, greater, training.early_stopping_patience, training.early_stopping_threshold)
