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
_NATS = 3.0  # of entropy that count as weight 1: near the logarithm of 20 tokens


def dft_sum(logprobs: Tensor) -> Tensor:
    """logprobs fp32 [L] -> the sum of each token's -log p times its p without gradient."""
    return -(logprobs.detach().exp() * logprobs).sum()


class SFT(Algorithm):
    """loss = Σ_t -log p(label_t | tokens before t) / Σ_t 1, t over the labelled positions of ALL ranks and
    micro-batches of a step.

    One term, ``nll``, weighted by labelled tokens. This is the exact mean over the tokens of the global
    batch, for any number of ranks, micro-batch size and gradient accumulation. A mean of per-rank means is
    not. With ``loss_type: dft`` a token's -log p is multiplied by sg(p), its probability without gradient
    (dynamic fine-tuning: Wu et al. 2025, arXiv:2508.05629, eq. 9); evaluation does the same, as in TRL.
    With ``eaft`` it is multiplied by sg(H / 3) ** eaft_alpha; H, in nats, is that of the 20 likeliest tokens
    (arXiv:2601.02151; LLaMA-Factory's ``eaft_loss_func``).
    """

    def __init__(self, **options: Json) -> None:
        o = SftOptions.model_validate(options)
        self.loss_type, self.exponent = o.loss_type, o.eaft_alpha

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        loss = {
            "dft": frozenset({Output.LOGPROBS}),
            "eaft": frozenset({Output.LOGPROBS, Output.LIKELIEST_ENTROPY}),
        }.get(self.loss_type, frozenset({Output.NLL}))
        return loss if training else loss | {Output.CORRECT}

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: batch.num_labels()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        if self.loss_type == "nll":
            return {TERM: outputs[Output.NLL.value]}
        logprobs = outputs[Output.LOGPROBS.value]
        if self.loss_type == "dft":
            return {TERM: dft_sum(logprobs)}
        weights = (outputs[Output.LIKELIEST_ENTROPY.value].detach() / _NATS) ** self.exponent
        return {TERM: -(weights * logprobs).sum()}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return {f"token_accuracy/{TERM}": outputs[Output.CORRECT.value]}
