"""Knowledge distillation: match a teacher's next-token distribution at every labelled token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.algorithms.supervised.sft import dft_sum
from paceline.config.sections.algorithms.supervised import DistillationOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import TEACHER, Divergence, Output, Role

TERM, SFT_TERM = "divergence", "nll"


class Distillation(Algorithm):
    """loss = (1 - α) Σ_t D(q_t ‖ p_t) / Σ_t 1 + α Σ_t -log p_t(label_t) / Σ_t 1, t over the labelled
    positions of ALL ranks and micro-batches of a step.

    q is the frozen teacher's distribution, p the student's, and D the generalised Jensen-Shannon divergence
    (``protocols.roles``: ``beta`` 0 is the forward KL of Hinton et al. 2015, 1 the reverse KL of Gu et
    al. 2024, between them Agarwal et al. 2023, arXiv:2306.13649, eq. 2) at ``temperature``. Its gradient is
    not multiplied by the squared temperature. α is ``alpha``. Evaluation reports that loss, and for the
    student alone the mean of -log p(label) as ``nll`` and ``token_accuracy``. With ``loss_type: asft`` the
    loss is Σ_t sg(p_t) · -log p_t(label_t) / Σ_t 1 + α Σ_t D / Σ_t 1 (anchored SFT, arXiv:2509.23753).
    """

    frozen = (Role.TEACHER,)
    reference_roles = (Role.TEACHER,)

    def __init__(self, **options: Json) -> None:
        o = DistillationOptions.model_validate(options)
        self.compares, self.alpha = Divergence(o.beta, o.temperature), o.alpha
        self.anchors = o.loss_type == "asft"

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        if role is Role.TEACHER:
            return frozenset({Output.HIDDEN})
        own = frozenset({Output.LOGPROBS}) if self.anchors else frozenset[Output]()
        if not training:
            return own | {Output.DIVERGENCE, Output.NLL, Output.CORRECT}
        own |= {Output.NLL} if self.alpha and not self.anchors else set()
        return own | {Output.DIVERGENCE}

    def attach_outputs(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        return replace(batch, tokens={**batch.tokens, TEACHER: outputs[Output.HIDDEN.value]})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        tokens = batch.num_labels()
        return {TERM: tokens, SFT_TERM: tokens} if self.alpha or self.anchors else {TERM: tokens}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        if self.anchors:
            divergence = self.alpha * outputs[Output.DIVERGENCE.value]
            return {TERM: divergence, SFT_TERM: dft_sum(outputs[Output.LOGPROBS.value])}
        sums = {TERM: (1.0 - self.alpha) * outputs[Output.DIVERGENCE.value]}
        if self.alpha:
            sums[SFT_TERM] = self.alpha * outputs[Output.NLL.value]
        return sums

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return {
            f"nll/{TERM}": outputs[Output.NLL.value],
            f"token_accuracy/{TERM}": outputs[Output.CORRECT.value],
        }
