"""Training state beyond weights and optimizer: a few numbers, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from paceline.config.registries.evaluation_metrics import greater_is_better
from paceline.config.sections.training import TrainingSection
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.plan.plan_json import from_json
from paceline.training import codes


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

    def to_json(self) -> JsonObject:
        return asdict(self)

    @staticmethod
    def from_json(data: JsonObject) -> TrainState:
        names = {f.name for f in fields(TrainState)}
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
