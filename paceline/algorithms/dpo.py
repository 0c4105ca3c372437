"""Direct preference optimisation: answers become likelier than a reference holds them, chosen ones more than rejected ones."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from paceline.algorithms.dpo_losses import LOSSES
from paceline.algorithms.pairs import document_labels, document_sums, halves, real_pairs, sum_of
from paceline.algorithms.referenced import Referenced
from paceline.config.sections.preference import DpoOptions
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Ask, Role

TERM, SFT_TERM = "pairs", "sft"
_METRICS = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected")  # fmt: skip


class DPO(Referenced):
    """loss = Σ_pairs L(Δ) / Σ_pairs 1 over the pairs of ALL ranks and micro-batches of a step (``dpo_losses`` has L and Δ), and with ``rpo_alpha``
    α Σ_t -log π(y_chosen,t) / Σ_t 1 beside it, over the tokens of chosen answers: the SFT term of Iterative RPO (Pang et al. 2024, arXiv:2404.19733, eq. 1,
    which divides by each answer's length; here, as TRL's ``sft`` loss, by all tokens).

    ``reference`` says where log π_ref comes from: ``live`` (a frozen model beside), ``adapter`` (the policy with its adapter switched off), ``cached``
    (in every batch already); it is 0 with ``reference_free``. Metrics, means over pairs, by TRL's names: ``rewards/chosen`` and ``rewards/rejected``
    (β times the log-ratio, a sum over tokens), ``rewards/accuracies``, ``rewards/margins``, ``logps/chosen``, ``logps/rejected``.
    """

    watched = tuple(f"{name}/{TERM}" for name in _METRICS)

    def __init__(self, *, reference: str = "live", **options: object) -> None:
        o = DpoOptions.model_validate(options)
        self.beta, self.smoothing = o.beta, o.label_smoothing
        self.loss = LOSSES[o.loss_type]
        self.length_normalized, self.alpha = o.length_normalized, o.rpo_alpha or 0.0
        super().__init__("" if o.reference_free else reference)

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        real = real_pairs(batch)
        if not self.alpha:
            return {TERM: real.sum()}
        return {TERM: real.sum(), SFT_TERM: sum_of(halves(document_labels(batch))[0], real)}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        real = real_pairs(batch)
        logps = document_sums(outputs[Ask.LOGPROBS.value], batch)
        ratios = logps - self.reference_logps(logps, batch)
        if self.length_normalized:
            ratios = ratios / document_labels(batch).clamp(min=1)
        chosen, rejected = halves(ratios)
        found = {TERM: sum_of(self.loss(chosen - rejected, self.beta, self.smoothing), real)}
        if self.alpha:
            found[SFT_TERM] = -self.alpha * sum_of(halves(logps)[0], real)
        return found

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        real = real_pairs(batch)
        logps = document_sums(outputs[Ask.LOGPROBS.value].detach(), batch).double()
        rewards = self.beta * (logps - self.reference_logps(logps, batch))
        (chosen, rejected), (chosen_logps, rejected_logps) = halves(rewards), halves(logps)
        values = (chosen, rejected, (chosen > rejected).double(), chosen - rejected, chosen_logps, rejected_logps)
        return {f"{name}/{TERM}": sum_of(value, real) for name, value in zip(_METRICS, values, strict=True)}
