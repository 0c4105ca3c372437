"""A window (the micro-batches of one optimizer step) and its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch

SPIKE = "spike"  # of ``StepResult.skipped``


@dataclass(frozen=True)
class Report:
    """Report of a rollout before a window's step. Equal on every rank, except ``samples``, which are rank
    0's.

    metrics  by name: rewards, lengths, seconds per phase
    samples  rows of prompt, completion, rewards, for inspection
    notes    findings that do not end the run
    seconds  total duration
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Json]] = ()
    notes: Sequence[Diagnostic] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Window:
    """The micro-batches of one rank for global step ``step`` (0-based) of ``epoch``; ``sample_digest`` hashes
    the document ids of ALL ranks.

    ``no_labels``: the hint of the error if no rank has a labelled token in it.
    """

    step: int
    epoch: int
    micro_batches: Sequence[Batch]
    sample_digest: str = ""
    report: Report | None = None
    no_labels: str = "check data.train_on and data.max_length"


@dataclass(frozen=True)
class StepResult:
    """The result of a training window, equal on every rank.

    losses     exact global mean by term (sum over all ranks and micro-batches / weight)
    weights    global weight by term (tokens, pairs), each row counted once
    grad_norm  global gradient norm before clipping; None if the step was skipped before the backward
    skipped    None, ``no_labels`` (all weights 0), ``overflow`` (fp16) or ``spike`` (``StepLimit``); a
               skipped step still counts as a step and consumes its samples
    tokens     real tokens of all ranks
    """

    losses: Mapping[str, float]
    weights: Mapping[str, int]
    grad_norm: float | None
    skipped: str | None
    tokens: int
    extras: Mapping[str, float] = field(default_factory=dict)  # e.g. loss_scale


@dataclass(frozen=True)
class UnreadResult:
    """The result of a training window, whose numbers may still be on their way from the device.

    read       wait for the result and return it
    under_way  whether ``read`` may have to wait for the device
    arrives    wait at most so many seconds; return whether the result arrived; raises nothing
    seconds    duration of the window by the device's timer, after ``read``; None if it has none
    """

    read: Callable[[], StepResult]
    under_way: bool = False
    arrives: Callable[[float], bool] = lambda seconds: True
    seconds: Callable[[], float | None] = lambda: None


@dataclass(frozen=True)
class StepLimit:
    """Above these a window's step is not made. ``loss``: its global mean; ``measured``: the window's own, on
    the device, once it is known. ``judges``: whether its weight is ``least_weight`` at least; others pass.
    """

    loss: float = math.inf
    grad_norm: float = math.inf
    least_weight: float = 0.0
    measured: Tensor | None = None
    judges: Tensor | None = None

    def of_window(self, measured: Tensor, weight: Tensor) -> StepLimit:
        """Return the same limit for a window with this loss and weight."""
        return replace(self, measured=measured, judges=weight >= self.least_weight)

    def refuses(self, norm: Tensor) -> Tensor:
        """Return whether a step with this gradient norm is above the limit, bool of its shape and device."""
        over = norm > self.grad_norm
        if self.measured is not None:
            over = over | (self.measured > self.loss).to(over.device)
        return over if self.judges is None else over & self.judges.to(over.device)


@dataclass(frozen=True)
class StepOutcome:
    """The result of ``Strategy.finish`` for one model: scalars on the strategy's device, equal on every rank.

    grad_norm   float64: global 2-norm of the unscaled gradients before clipping; if inf or nan, no step was
                made
    loss_scale  float64: the fp16 gradient scaler's scale for the next window; None without a scaler
    refused     float64: 1 if no step was made since a ``StepLimit`` refused it, else 0; None without a limit
    """

    grad_norm: Tensor
    loss_scale: Tensor | None = None
    refused: Tensor | None = None

    @staticmethod
    def of(norm: Tensor, loss_scale: Tensor | None, refused: Tensor | None) -> StepOutcome:
        """Return the outcome; ``refused``: bool."""
        return StepOutcome(norm, loss_scale, None if refused is None else refused.to(norm))


@dataclass(frozen=True)
class EvalSums:
    """The result of an evaluation window, summed over all ranks.

    sums     by loss term (summed losses) and by metric name (``correct/nll``)
    weights  by loss term
    rows     real rows (fillers not counted)
    """

    sums: Mapping[str, float]
    weights: Mapping[str, int]
    rows: int
