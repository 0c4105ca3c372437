"""A step whose numbers the host has not read: they arrive while the next one runs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import PacelineError
from paceline.protocols.window import StepResult, UnreadResult, Window
from paceline.training import codes
from paceline.training.loop.train_state import TrainState


@dataclass(frozen=True)
class UnreadStep:
    """The step of ``window``, begun at ``begun`` (``time.perf_counter``); its call took ``seconds``."""

    window: Window
    lr: float
    begun: float
    seconds: float
    result: UnreadResult

    def read(self, former: float) -> tuple[StepResult, float, float]:
        """Return the result, the seconds that the step took, and when it was done.

        By the device's own clock: a host that is late reads two ends at once. Where it keeps none, by the
        host's; ``former``: when the step before it was done, before which the device has not begun this one.
        """
        result = self.result.read()
        done = time.perf_counter()
        if not self.result.under_way:
            return result, self.seconds, self.begun + self.seconds
        measured = self.result.seconds()
        return result, done - max(self.begun, former) if measured is None else measured, done


def findings_of(window: Window, result: StepResult, lr: float, state: TrainState) -> list[Diagnostic]:
    """Return the warning of a skipped step, and count it.

    Raises PacelineError if the loss or the gradient norm is not finite.
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
    if math.isfinite(sum(result.losses.values())) and math.isfinite(result.grad_norm or 0.0):
        return []
    raise PacelineError(
        codes.TRAINING_NONFINITE(
            where,
            f"losses {dict(result.losses)}, grad_norm {result.grad_norm}, lr {lr:g}",
            step=step,
            evidence={"step": step, "sample_digest": window.sample_digest},
        )
    )
