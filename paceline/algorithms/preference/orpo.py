"""Odds ratio preference optimisation: SFT on chosen answers and a penalty on the odds of rejected ones."""

from __future__ import annotations

from collections.abc import Mapping
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.algorithms.preference.pair_policy import (
    TERM,
    PairPolicy,
    document_sums,
    halves,
    real_pairs,
    sum_of,
    token_means,
)
from paceline.config.sections.algorithms.preference import OrpoOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.runtime.device.device import widened

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
    # Both branches are finite everywhere by their clamps: a NaN in the other one would reach the gradient.
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
