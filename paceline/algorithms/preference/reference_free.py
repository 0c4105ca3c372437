"""Preference losses without a reference: CPO (Xu et al. 2024), SimPO (Meng et al. 2024) and ORPO.

ORPO is SFT on chosen answers and a penalty on the odds of rejected ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.algorithms.preference.dpo import LOSSES, sigmoid
from paceline.algorithms.preference.pair_policy import (
    TERM,
    PairPolicy,
    document_sums,
    halves,
    real_pairs,
    sum_of,
    token_means,
)
from paceline.config.sections.algorithms.preference import CpoOptions, OrpoOptions, SimpoOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.runtime.device.device import widened

GAMMA = 0.5  # TRL's default of ``simpo_gamma``


def simpo(gap: Tensor, beta: float, gamma: float, smoothing: float) -> Tensor:
    """Return [P]: -(1 - ε) log σ(β Δ - γ) - ε log σ(γ - β Δ), with Δ the gap of the mean log-probabilities
    per token.

    Meng et al. 2024 (SimPO, arXiv:2405.14734, eq. 6) at ε = 0. γ is the target margin between the rewards,
    which are β times means over |y| tokens.
    """
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
        return compared, compared


class SimPO(CPO):
    """The loss of a pair is -log σ(β (M_chosen - M_rejected) - γ), with M = log π(y|x) / |y| and γ =
    ``simpo_gamma``.

    Meng et al. 2024 (arXiv:2405.14734, eq. 6). The same as TRL's CPOConfig(loss_type="simpo", cpo_alpha=0);
    ``cpo_alpha`` above 0 adds CPO's SFT term.
    """

    def __init__(self, **options: Json) -> None:
        super().__init__(loss_type="simpo", **SimpoOptions.model_validate(options).model_dump())


_RATIO, _ODDS = f"log_odds_ratio/{TERM}", f"log_odds_chosen/{TERM}"


def log_odds(logps: Tensor) -> Tensor:
    """Return log (P / (1 - P)) from log P ≤ 0, clamping P below 1: Hong et al. 2024 (ORPO, arXiv:2403.07691,
    eq. 4).
    """
    logps = logps.clamp(max=-torch.finfo(logps.dtype).eps)
    # log(1 - e^x) without cancellation (Mächler 2012, "Accurately computing log(1 - exp(-|a|))")
    near_one = logps > -log(2)
    small = torch.log(-torch.expm1(logps.clamp(min=-log(2))))
    large = torch.log1p(-torch.exp(logps.clamp(max=-log(2))))
    return logps - torch.where(near_one, small, large)


class ORPO(PairPolicy):
    """The SFT term on chosen answers, plus per pair β times -log σ(log odds(y_chosen|x) - log
    odds(y_rejected|x)).

    log P is a mean over an answer's tokens: Hong et al. 2024 (arXiv:2403.07691, eqs. 3, 4, 6 and 7; ``beta``
    is their λ).

    The SFT term is a mean over the answers' tokens of the whole global batch. TRL takes the mean over prompts
    and answers (the paper's equation 3 has answers alone) of each process's micro-batch. So its loss depends
    on how the batch is split. Metrics are those of ``PairPolicy`` plus TRL's ``log_odds_ratio``, log σ of the
    difference of log odds, and ``log_odds_chosen``, the difference itself.
    """

    train_metrics = (*PairPolicy.train_metrics, _RATIO, _ODDS)
    alpha = 1.0

    def __init__(self, **options: Json) -> None:
        o = OrpoOptions.model_validate(options)
        self.beta, self.mean_of_means = o.beta, o.mean_of_means

    def pair_loss(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return -self.beta * F.logsigmoid(log_odds(chosen) - log_odds(rejected))

    def compared(self, logps: Tensor, batch: Batch) -> Tensor:
        return token_means(logps, batch)

    def rewards_and_logps(self, logps: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        means = token_means(logps, batch)
        return means, means

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        real = real_pairs(batch)
        logps = widened(document_sums(outputs[Output.LOGPROBS.value].detach(), batch))
        chosen, rejected = halves(log_odds(token_means(logps, batch)))
        gap = chosen - rejected
        return {
            **super().metrics(role, outputs, batch),
            _RATIO: sum_of(F.logsigmoid(gap), real),
            _ODDS: sum_of(gap, real),
        }
