"""Contrastive preference optimisation: chosen answers become likelier than rejected ones; no reference is asked."""

from __future__ import annotations

from torch import Tensor

from paceline.algorithms.dpo_losses import LOSSES, sigmoid
from paceline.algorithms.pair_policy import PairPolicy, token_means
from paceline.config.sections.preference import CpoOptions
from paceline.protocols.batch import Batch

GAMMA = 0.5  # TRL's default of ``simpo_gamma``


def simpo(gap: Tensor, beta: float, gamma: float, smoothing: float) -> Tensor:
    """[P]: -(1 - ε) log σ(β Δ - γ) - ε log σ(γ - β Δ), Δ the difference of the answers' mean log-probabilities a token.

    Meng et al. 2024 (SimPO, arXiv:2405.14734, eq. 6) at ε = 0; a target margin γ between rewards that are means over |y| tokens.
    """
    return sigmoid(gap - gamma / beta, beta, smoothing)


class CPO(PairPolicy):
    """A pair's loss is -log σ(β (log π(y_chosen|x) - log π(y_rejected|x))), and ``cpo_alpha`` times the SFT term stands beside it: Xu et al. 2024
    (arXiv:2401.08417, eq. 3 and the NLL term of section 3.2, DPO's loss under a uniform reference).

    ``loss_type``: also ``hinge``, ``ipo`` and ``simpo`` (with ``cpo_alpha`` this is CPO-SimPO), each as TRL's CPOTrainer has it: ``ipo`` and ``simpo``
    compare means over tokens. The paper's NLL is a sum over the answer; here, as in TRL, a mean over tokens, of the whole global batch: TRL's is one of each
    process's micro-batch, so that its loss depends on how the batch is cut. Rewards are β times what is compared.
    """

    def __init__(self, **options: object) -> None:
        o = CpoOptions.model_validate(options)
        self.beta, self.alpha, self.smoothing = o.beta, o.cpo_alpha, o.label_smoothing
        self.loss = LOSSES.get(o.loss_type)  # None: SimPO's
        self.gamma = GAMMA if o.simpo_gamma is None else o.simpo_gamma
        self.means = o.loss_type in ("ipo", "simpo")

    def pair_loss(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        gap = chosen - rejected
        if self.loss is None:
            return simpo(gap, self.beta, self.gamma, self.smoothing)
        return self.loss(gap, self.beta, self.smoothing)

    def compared(self, logps: Tensor, batch: Batch) -> Tensor:
        return token_means(logps, batch) if self.means else logps

    def told(self, logps: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        compared = self.compared(logps, batch)
        return compared, compared
