"""Supervised fine-tuning: the mean cross-entropy over all labelled tokens of the global batch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role

TERM = "nll"


class SFT(Algorithm):
    """loss = Σ_t -log p(label_t | tokens before t) / Σ_t 1, t over the labelled positions of ALL ranks and
    micro-batches of a step.

    One term, ``nll``, weighted by labelled tokens. This is the exact mean over the tokens of the global
    batch, for any number of ranks, micro-batch size and gradient accumulation. A mean of per-rank means is
    not.
    """

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.NLL}) if training else frozenset({Output.NLL, Output.CORRECT})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: batch.num_labels()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: outputs[Output.NLL.value]}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return {f"token_accuracy/{TERM}": outputs[Output.CORRECT.value]}
