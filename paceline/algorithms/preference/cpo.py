"""CPO (Xu et al. 2024) and SimPO (Meng et al. 2024): pairs without a reference."""

from __future__ import annotations

from torch import Tensor

from paceline.algorithms.preference.dpo import LOSSES, sigmoid
from paceline.algorithms.preference.pair_policy import PairPolicy, token_means
from paceline.config.sections.algorithms.preference import CpoOptions, SimpoOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch

GAMMA = 0.5  # TRL's default of ``simpo_gamma``


def simpo(gap: Tensor, beta: float, gamma: float, smoothing: float) -> Tensor:
    """Return [P]: -(1 - ε) log σ(β Δ - γ) - ε log σ(γ - β Δ), with Δ the gap of the mean log-probabilities
    per token.

    Meng et al. 2024 (SimPO, arXiv:2405.14734, eq. 6) at ε = 0. γ is the target margin between the rewards,
    which are β times means over |y| tokens.
    """
    # β (Δ - γ / β) = β Δ - γ
    return sigmoid(gap - gamma / beta, beta, smoothing)


class CPO(PairPolicy):
    """The loss of a pair is -log σ(β (log π(y_chosen|x) - log π(y_rejected|x))), plus ``cpo_alpha`` times an
    SFT term.

    Xu et al. 2024 (arXiv:2401.08417, eq. 3 and the NLL term of section 3.2: DPO's loss under a uniform
    reference).

    ``loss_type`` may also be ``hinge``, ``ipo`` or ``simpo`` (with ``cpo_alpha``: CPO-SimPO), as in TRL's
    CPOTrainer: ``ipo`` and ``simpo`` compare means over tokens. The paper's NLL is a sum over the answer.
    Here, as in TRL, it is a mean over tokens. Paceline takes the mean over the whole global batch. TRL takes
    it over each process's micro-batch, so its loss depends on how the batch is split. Rewards are β times
    what is compared.
    """

    def __init__(self, **options: Json) -> None:
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

    def rewards_and_logps(self, logps: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        compared = self.compared(logps, batch)
        # Without a reference the reward is the likelihood itself.
        return compared, compared


class SimPO(CPO):
    """The loss of a pair is -log σ(β (M_chosen - M_rejected) - γ), with M = log π(y|x) / |y| and γ =
    ``simpo_gamma``.

    Meng et al. 2024 (arXiv:2405.14734, eq. 6). The same as TRL's CPOConfig(loss_type="simpo", cpo_alpha=0);
    ``cpo_alpha`` above 0 adds CPO's SFT term.
    """

    def __init__(self, **options: Json) -> None:
        super().__init__(loss_type="simpo", **SimpoOptions.model_validate(options).model_dump())
