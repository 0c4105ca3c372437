"""Supervised fine-tuning: the mean cross-entropy over all labelled tokens of the global batch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.config.sections.algorithms.supervised import SftOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role

TERM = "nll"


class SFT(Algorithm):
    """loss = Σ_t -log p(label_t | tokens before t) / Σ_t 1, t over the labelled positions of ALL ranks and
    micro-batches of a step.

    One term, ``nll``, weighted by labelled tokens. This is the exact mean over the tokens of the global
    batch, for any number of ranks, micro-batch size and gradient accumulation. A mean of per-rank means is
    not. With ``loss_type: dft`` a token's -log p is multiplied by sg(p), its probability without gradient
    (dynamic fine-tuning: Wu et al. 2025, arXiv:2508.05629, eq. 9); evaluation does the same, as in TRL.
    """

    def __init__(self, **options: Json) -> None:
        self.weighs_tokens = SftOptions.model_validate(options).loss_type == "dft"

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        loss = Output.LOGPROBS if self.weighs_tokens else Output.NLL
        return frozenset({loss}) if training else frozenset({loss, Output.CORRECT})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: batch.num_labels()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        if not self.weighs_tokens:
            return {TERM: outputs[Output.NLL.value]}
        logprobs = outputs[Output.LOGPROBS.value]
        return {TERM: -(logprobs.detach().exp() * logprobs).sum()}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return {f"token_accuracy/{TERM}": outputs[Output.CORRECT.value]}
