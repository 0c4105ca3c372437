"""Spikes of the loss and of the gradient norm: what is one, by the steps before it.

A spike is above the median of the last steps by ``spike_sigma_factor`` robust standard deviations. Each is
1.4826 times the median absolute deviation. The spread of gradient norms is relative: their logarithms are
compared. All values count for the median, so that a new level is no spike after half a window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_steps import ROLLBACK, SKIP, WARN
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.protocols.window import SPIKE, StepLimit, StepResult
from paceline.training import codes
from paceline.training.loop.train_state import PassedStep, TrainState

NORMAL = 1.4826  # standard deviations of a normal distribution in its median absolute deviation
LEAST_LOSS = (0.02, 0.01)  # of a loss's deviation: a share of the median, and nats
LEAST_NORM = 0.1  # of the deviation of a norm's logarithm
LEAST_WEIGHT = 0.5  # of the median: the mean of fewer tokens, as at an epoch's end, strays further
WARNINGS = 10  # of an attempt; further spikes are only counted
_SHOWN, _KEPT = 8, 1000  # rows in the message, and in its evidence


@dataclass(frozen=True)
class SpikeRule:
    """``training.on_spike`` and what a spike is."""

    policy: str = WARN
    window: int = 128
    factor: float = 6.0

    @staticmethod
    def of(training: TrainingSection) -> SpikeRule:
        return SpikeRule(training.on_spike, training.spike_window, training.spike_sigma_factor)

    @property
    def skips(self) -> bool:
        """Whether the step of a spike is not made."""
        return self.policy == SKIP

    @property
    def rolls_back(self) -> bool:
        """Whether the run goes back to a checkpoint, and leaves the spike's rows out."""
        return self.policy == ROLLBACK


@dataclass(frozen=True)
class Spike:
    """A spike at the 0-based ``step``: in words, and its result."""

    step: int
    found: str
    result: StepResult

    def finding(self, outcome: str, rows: Sequence[str], hint: str) -> Diagnostic:
        """Return the warning: what was done, and the window's rows."""
        more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
        named = f"; rows {', '.join(rows[:_SHOWN])}{more}" if rows else ""
        return codes.TRAINING_SPIKE(
            f"step {self.step + 1} is a spike: {outcome}",
            f"step {self.step + 1}",
            self.found + named,
            hint,
            Severity.WARNING,
            evidence={"step": self.step + 1, "rows": list(rows[:_KEPT])},
        )

    @property
    def passed(self) -> PassedStep:
        """The record that leaves its rows out when they come again."""
        result = self.result
        norm = 0.0 if result.grad_norm is None else result.grad_norm
        return PassedStep(self.step, dict(result.losses), dict(result.weights), norm, result.tokens)


class SpikeWatch:
    """Judges every step's result, which is equal on every rank. ``falls``: training lowers this algorithm's
    loss; other losses may rise, and only their gradients are judged.
    """

    def __init__(self, rule: SpikeRule, state: TrainState, falls: bool = True) -> None:
        self.rule, self._state, self._falls = rule, state, falls
        self._warned = 0

    def limit(self) -> StepLimit:
        """Return the values above which the next step is a spike; infinite until half a window is known."""
        losses, norms = self._state.recent_losses, self._state.recent_norms
        share, nats = LEAST_LOSS
        loss = norm = math.inf
        if self._falls and self._known(losses):
            middle, spread = median_and_deviation(losses)
            # A flat curve has almost no deviation; without a floor its noise would be spikes.
            loss = middle + self.rule.factor * max(spread, share * abs(middle), nats)
        if self._known(norms):
            middle, spread = median_and_deviation([math.log(value) for value in norms])
            # exp(710) overflows a double.
            norm = math.exp(min(700.0, middle + self.rule.factor * max(spread, LEAST_NORM)))
        weights = self._state.recent_weights
        least = LEAST_WEIGHT * _median(sorted(weights)) if self._known(weights) else 0.0
        return StepLimit(loss, norm, least)

    def _known(self, values: Sequence[float]) -> bool:
        # Half a window: with fewer values the median absolute deviation itself is noise.
        return 2 * len(values) >= self.rule.window

    def observe(self, step: int, result: StepResult) -> Spike | None:
        """Return the spike of the 0-based ``step``, if it is one, and remember its values."""
        loss, norm = sum(result.losses.values()), result.grad_norm
        if norm is None or not (math.isfinite(loss) and math.isfinite(norm)):
            return None
        # An overflow or a window without labels measured nothing.
        if result.skipped not in (None, SPIKE):
            return None
        limit, weight = self.limit(), float(sum(result.weights.values()))
        above = [
            f"{name} {value:.4g}, above {most:.4g}"
            for name, value, most in (("loss", loss, limit.loss), ("grad_norm", norm, limit.grad_norm))
            if value > most and weight >= limit.least_weight
        ]
        is_spike = bool(above) or result.skipped is not None
        # Spikes too: if the level has changed for good, half a window later it is the median.
        self._state.remember(loss, norm, weight, self.rule.window, is_spike=is_spike)
        if not is_spike:
            return None
        return Spike(step, " and ".join(above) or f"loss {loss:.4g}, grad_norm {norm:.4g}", result)

    def warning(self, spike: Spike, rows: Sequence[str]) -> list[Diagnostic]:
        """Return the warning of a spike that was trained on, for the first ones of an attempt."""
        self._warned += 1
        if self._warned > WARNINGS:
            return []
        last = "; further ones are counted only (spikes of result.json)" if self._warned == WARNINGS else ""
        hint = "on_spike: skip leaves such steps out, rollback goes back to the last checkpoint"
        return [spike.finding(f"the step was made{last}", rows, hint)]


def median_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of at least one value, and ``NORMAL`` times the median of the distances to it."""
    middle = _median(sorted(values))
    return middle, NORMAL * _median(sorted(abs(value - middle) for value in values))


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
