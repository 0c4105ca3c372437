"""Direct preference optimisation: raises the log-ratio to a reference for chosen above rejected answers."""

from __future__ import annotations

from torch import Tensor

from paceline.algorithms.dpo_losses import LOSSES
from paceline.algorithms.pair_policy import PairPolicy, token_means
from paceline.algorithms.referenced import Referenced
from paceline.config.sections.preference import DpoOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch


class DPO(Referenced, PairPolicy):
    """The loss of a pair is L(Δ) of ``dpo_losses``, plus ``rpo_alpha`` times an SFT term on chosen answers.

    The SFT term is that of Iterative RPO (Pang et al. 2024, arXiv:2404.19733, eq. 1, which divides by each
    answer's length; here, as in TRL's ``sft`` loss, by all tokens).

    ``reference`` says where log π_ref comes from: ``live`` (a separate frozen model), ``adapter`` (the policy
    with its adapter disabled), ``cached`` (precomputed, in every batch). With ``reference_free`` it is 0.
    Rewards are β times the log-ratio, a sum over tokens.
    """

    def __init__(self, *, reference: str = "live", **options: Json) -> None:
        o = DpoOptions.model_validate(options)
        self.beta, self.smoothing = o.beta, o.label_smoothing
        self.loss = LOSSES[o.loss_type]
        self.length_normalized, self.alpha = o.length_normalized, o.rpo_alpha or 0.0
        super().__init__("" if o.reference_free else reference)

    def pair_loss(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return self.loss(chosen - rejected, self.beta, self.smoothing)

    def compared(self, logps: Tensor, batch: Batch) -> Tensor:
        ratios = logps - self.reference_logps(logps, batch)
        return token_means(ratios, batch) if self.length_normalized else ratios

    def rewards_and_logps(self, logps: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return logps - self.reference_logps(logps, batch), logps
