"""The warnings of single steps: skipped ones, steps without a gradient, a diverging loss."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.core.errors import PacelineError
from paceline.core.json_types import Json
from paceline.plan.plan_json import to_json
from paceline.protocols.window import StepResult, Window
from paceline.training import codes
from paceline.training.loop.nonfinite_trace import Trace
from paceline.training.loop.train_state import TrainState

LEARNED = 1e-4  # a loss below this has nothing left to learn: its gradient may well round to 0
IN_A_ROW = 3  # steps without a gradient before the warning
FEW, MANY = 3, 20  # steps in the mean that is compared with the first loss, and with the first MANY / 2
EXPLODED = (10.0, 10.0)  # times the first loss, plus nats: no untrained language model is that wrong
RISEN = (2.0, 1.0)
_HINT = (
    "lower training.learning_rate or lengthen the warm-up (training.warmup_steps); resume from an"
    " earlier checkpoint"
)


@dataclass
class DivergenceWatch:
    """Checks every step's result, which is equal on every rank.

    ``falls``: training lowers this algorithm's loss. "No gradient" means exactly 0: a small gradient still
    moves the weights. A loss of almost 0 may have a gradient of 0 and gives no warning. Nor does a loss of 0
    because there was nothing to compare (rollouts report that themselves).
    """

    state: TrainState
    falls: bool = True
    in_a_row: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=MANY))
    begun: list[float] = field(default_factory=list)  # the first losses of this attempt
    reported: set[str] = field(default_factory=set)

    def observe(self, result: StepResult) -> list[Diagnostic]:
        """Return the warnings of this step, each once per attempt."""
        if result.skipped is not None or result.grad_norm is None:
            return []
        loss = sum(result.losses.values())
        self.state.trained_steps += 1
        if self.state.first_loss is None:
            self.state.first_loss = loss
        if len(self.begun) < MANY // 2:
            self.begun.append(loss)
        self.recent.append(loss)
        without = result.grad_norm == 0.0 and abs(loss) > LEARNED
        self.state.steps_without_gradient += without
        # ``without`` needs a loss above LEARNED: a model that has learnt its rows by heart rounds to a
        # gradient of 0.
        self.in_a_row = self.in_a_row + 1 if without else 0
        findings = [self._no_gradient(f"{self.in_a_row} steps in a row")] if self.in_a_row >= IN_A_ROW else []
        news = [d for d in (*findings, *self._diverged()) if d.code not in self.reported]
        self.reported |= {d.code for d in news}
        return news

    def at_end(self) -> list[Diagnostic]:
        """Return the warnings at the end of the run."""
        steps, without = self.state.trained_steps, self.state.steps_without_gradient
        findings = [self._no_gradient(f"{without} of {steps} steps")] if 2 * without >= max(steps, 2) else []
        return [*findings, *self._diverged()]

    def _no_gradient(self, count: str) -> Diagnostic:
        return self._warning(
            codes.TRAINING_NO_GRADIENT,
            f"no gradient reached the weights in {count}: these steps change nothing",
            f"grad_norm 0, loss {self.recent[-1]:.4g}",
            "check that something is trained (lora.target_modules) and that the loss has not"
            f" diverged; {_HINT}",
        )

    def _diverged(self) -> list[Diagnostic]:
        """Warn if the recent loss exceeds the initial loss by both a factor and an amount.

        With uneven data the loss must also exceed it in many consecutive steps.
        """
        first = self.state.first_loss
        if not self.falls or first is None or len(self.recent) < FEW:
            return []
        last = list(self.recent)
        pairs = [(_mean(last[-FEW:]), first, EXPLODED)]
        before = _mean(self.begun)
        # ``min``: every one of the last steps is above the start, so uneven rows alone cannot trigger it.
        if len(last) == MANY and self.state.trained_steps >= 2 * MANY and min(last) > before:
            pairs.append((_mean(last), before, RISEN))
        for now, before, (times, more) in pairs:
            if now > times * abs(before) + more:
                return [
                    self._warning(
                        codes.TRAINING_DIVERGED,
                        f"the loss has risen to {now:.4g} from {before:.4g} at the start:"
                        " training has diverged",
                        f"loss {last[-1]:.4g}",
                        _HINT,
                    )
                ]
        return []

    def _warning(self, code: Code, what: str, found: str, hint: str) -> Diagnostic:
        return code(what, f"step {self.state.step}", found, hint, Severity.WARNING)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def findings_of(
    window: Window,
    result: StepResult,
    lr: float,
    state: TrainState,
    trace: Callable[[Window], Trace] | None = None,
) -> list[Diagnostic]:
    """Return the warning of a skipped step, and count it.

    Raises PacelineError if the loss or the gradient norm is not finite, with what ``trace`` (collective)
    finds.
    """
    step, where = window.step + 1, f"step {window.step + 1}"
    if result.skipped == "no_labels":
        state.skipped_no_labels += 1
        what = f"step {step} had no token with loss on any rank: no update was made"
        return [codes.TRAINING_NO_LABELS(what, where, hint=window.no_labels, severity=Severity.WARNING)]
    if result.skipped == "overflow":
        state.skipped_overflow += 1
        what = f"step {step}: fp16 gradients overflowed, the update was skipped and the loss scale lowered"
        return [codes.TRAINING_OVERFLOW(what, where, severity=Severity.WARNING)]
    if result.skipped is not None:
        state.skipped_spikes += 1
    if math.isfinite(sum(result.losses.values())) and math.isfinite(result.grad_norm or 0.0):
        return []
    numbers = f"losses {dict(result.losses)}, grad_norm {result.grad_norm}, lr {lr:g}"
    evidence: dict[str, Json] = {"step": step, "sample_digest": window.sample_digest}
    if trace is not None:
        traced = trace(window)
        numbers = f"{traced.describe()}; {numbers}"
        evidence |= {"traced": to_json(traced)}
    raise PacelineError(codes.TRAINING_NONFINITE(where, numbers, step=step, evidence=evidence))


def check_sampling(result: StepResult, step: int, largest: float | None) -> None:
    """Raise PacelineError ``rollout.sampling_gap`` if answers were sampled by another distribution than the
    policy's: by more than ``largest`` nats a token, in the mean.
    """
    gap = result.extras.get("sampling_gap", 0.0)
    if largest is not None and gap > largest:
        found = f"sampling_gap {gap:.3g}, above {largest:g}"
        remedy = (
            "start the server with --logprobs-mode processed_logprobs, and the run's model and dtype; or"
            " raise training.rollout.max_sampling_gap"
        )
        raise PacelineError(codes.ROLLOUT_SAMPLING_GAP(f"step {step}", found, remedy=remedy))
