"""Kahneman-Tversky optimisation: learn from single answers labelled good or bad, relative to a reference."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.algorithms.preference.pair_policy import WithReference, document_sums, sum_of
from paceline.config.sections.algorithms.preference import KtoOptions
from paceline.core.json_types import Json
from paceline.protocols.algorithm import WindowMeans
from paceline.protocols.batch import MISMATCHED, Batch
from paceline.protocols.roles import Output, Role
from paceline.runtime.device.device import widened

TERM = "answers"
# in ``Batch.extras``: [D], the window's mean KL before clamping; 1 for a desirable answer, else 0
KL, LABEL = ("kl", "label")
_METRICS = ("kl", "chosen", "rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected")


class KTO(WithReference):
    """loss = Σ_i w_i · (1 - σ(± β (h_i - z0))) / Σ_i 1 over the answers i of ALL ranks and micro-batches of a
    step.

    The sign is + and w = ``desirable_weight`` where the label is true, - and w = ``undesirable_weight`` where
    it is false. h = log π(y|x) - log π_ref(y|x), a sum over the answer's tokens. Ethayarajh et al. 2024
    (arXiv:2402.01306, eq. 7), without the constant Σ λ_y - Σ w.

    z0 = max(0, mean of log π(y'|x) - log π_ref(y'|x)) estimates KL(π ‖ π_ref) on mismatched pairs: each
    prompt x with the answer y' of the previous document. It has no gradient. It is computed over the GLOBAL
    batch: every answer of the step (in evaluation: of the whole set), on any rank and in any micro-batch, in
    the order of the data. So loss and gradient do not depend on the split. TRL shifts answers within
    micro-batches, and takes z0 over the micro-batches of all ranks; with one micro-batch on one rank both are
    the same number.

    ``loss_type`` ``apo_zero_unpaired`` sets z0 = 0: 1 - σ(βh) for a desirable answer, σ(βh) for an
    undesirable one. This is the unpaired form, as in TRL, of APO-zero (D'Oosterlinck et al. 2024,
    arXiv:2408.06266, eq. 7).

    Metrics have TRL's names: ``kl`` (z0), ``rewards/chosen`` and ``rewards/rejected`` (means of β h over the
    answers with that label), ``rewards/margins``, ``logps/chosen``, ``logps/rejected``. A label without
    answers has none.
    """

    counts_documents = True
    train_metrics = tuple(f"{name}/{TERM}" for name in _METRICS)

    def __init__(self, *, reference: str = "live", **options: Json) -> None:
        o = KtoOptions.model_validate(options)
        self.beta, self.desirable, self.undesirable = o.beta, o.desirable_weight, o.undesirable_weight
        if o.loss_type != "apo_zero_unpaired":
            self.window_means = WindowMeans((Role.POLICY, Role.REFERENCE), MISMATCHED)
        super().__init__(reference)

    def window_sums(
        self, outputs: Mapping[Role, Mapping[str, Tensor]], batch: Batch
    ) -> Mapping[str, tuple[Tensor, Tensor]]:
        policy, reference = (
            widened(outputs[role][Output.LOGPROBS.value]) for role in (Role.POLICY, Role.REFERENCE)
        )
        real = _real(batch)
        return {KL: (sum_of(document_sums(policy - reference, batch), real), real.sum())}

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: _real(batch).sum()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        logps = document_sums(outputs[Output.LOGPROBS.value], batch)
        # h - z0, times β.
        gap = self.beta * (logps - self.reference_logps(logps, batch) - self._baseline(logps, batch))
        good = batch.extras[LABEL] > 0
        # 1 - σ(x) = σ(-x)
        losses = torch.where(
            good, self.desirable * torch.sigmoid(-gap), self.undesirable * torch.sigmoid(gap)
        )
        return {TERM: sum_of(losses, _real(batch))}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        logps = widened(document_sums(outputs[Output.LOGPROBS.value].detach(), batch))
        rewards = self.beta * (logps - self.reference_logps(logps, batch))
        real, good = _real(batch), batch.extras[LABEL] > 0
        chosen, rejected = real & good, real & ~good
        sums = {"kl": (self._baseline(logps, batch), real), "chosen": (torch.ones_like(logps), chosen)}
        for name, values in (("rewards", rewards), ("logps", logps)):
            sums |= {f"{name}/chosen": (values, chosen), f"{name}/rejected": (values, rejected)}
        return {f"{name}/{TERM}": sum_of(values, where) for name, (values, where) in sums.items()}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the KL, and the means over the answers of each label.

        The latter are means over all answers, divided by the label's share.
        """
        averages = {"kl": means["kl"]}
        for label, share in (("chosen", means["chosen"]), ("rejected", 1.0 - means["chosen"])):
            # below that the share is rounding: no answer has the label
            if share > 1e-9:
                averages |= {
                    f"{name}/{label}": means[f"{name}/{label}"] / share for name in ("rewards", "logps")
                }
        if {"rewards/chosen", "rewards/rejected"} <= set(averages):
            averages["rewards/margins"] = averages["rewards/chosen"] - averages["rewards/rejected"]
        return averages

    def _baseline(self, logps: Tensor, batch: Batch) -> Tensor:
        """Return z0 [D]; 0 if no KL was computed, as in a batch of fillers."""
        return batch.extras[KL].to(logps).clamp(min=0) if KL in batch.extras else torch.zeros_like(logps)


def _real(batch: Batch) -> Tensor:
    """Return bool [D]: False for fillers."""
    return batch.document_ids >= 0
