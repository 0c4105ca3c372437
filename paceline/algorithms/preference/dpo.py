"""DPO (Rafailov et al. 2023) and the losses of a pair's log-ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.algorithms.preference.pair_policy import PairPolicy, WithReference, token_means
from paceline.config.sections.algorithms.preference import DpoOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch

Loss = Callable[[Tensor, float, float], Tensor]


def sigmoid(gap: Tensor, beta: float, smoothing: float) -> Tensor:
    """Return [P]: -(1 - ε) log σ(β Δ) - ε log σ(-β Δ).

    Rafailov et al. 2023 (arXiv:2305.18290, eq. 7) at ε = 0. ε is the assumed fraction of flipped labels
    (conservative DPO, Mitchell 2023, "A note on DPO with noisy preferences"). With length-normalised
    log-ratios this is TRL's ``sigmoid_norm``.
    """
    return -(1 - smoothing) * F.logsigmoid(beta * gap) - smoothing * F.logsigmoid(-beta * gap)


def robust(gap: Tensor, beta: float, smoothing: float) -> Tensor:
    """Return [P]: (-(1 - ε) log σ(β Δ) + ε log σ(-β Δ)) / (1 - 2 ε), unbiased if labels are flipped with
    probability ε.

    Chowdhury et al. 2024, arXiv:2403.00409.
    """
    return (-(1 - smoothing) * F.logsigmoid(beta * gap) + smoothing * F.logsigmoid(-beta * gap)) / (
        1 - 2 * smoothing
    )


def hinge(gap: Tensor, beta: float, smoothing: float) -> Tensor:
    """Return [P]: max(0, 1 - β Δ).

    SLiC-HF's loss (Zhao et al. 2023, arXiv:2305.10425) on the normalised likelihoods of RSO (Liu et al. 2023,
    arXiv:2309.06657).
    """
    return F.relu(1 - beta * gap)


def ipo(gap: Tensor, beta: float, smoothing: float) -> Tensor:
    """Return [P]: (Δ - 1 / (2 β))², where β is the paper's τ.

    Azar et al. 2023 (arXiv:2310.12036, eq. 17), whose Δ is of sums over tokens. TRL divides each log-ratio by
    the answer's length (``length_normalized``).
    """
    return (gap - 1 / (2 * beta)).square()


def apo_zero(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return [P]: 1 - σ(β r⁺) + σ(β r⁻) of the log-ratios r: the chosen answer is to become likelier.

    D'Oosterlinck et al. 2024, arXiv:2408.06266.
    """
    return 1 - torch.sigmoid(beta * chosen) + torch.sigmoid(beta * rejected)


def apo_down(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return [P]: σ(β r⁺) + 1 - σ(β Δ): both answers are to become less likely, the rejected one more so.

    As ``apo_zero``, for chosen answers that are worse than the model's own.
    """
    return torch.sigmoid(beta * chosen) + 1 - torch.sigmoid(beta * (chosen - rejected))


#: losses of the difference of a pair's log-ratios, and of the two log-ratios themselves
LOSSES: Mapping[str, Loss] = {"sigmoid": sigmoid, "hinge": hinge, "ipo": ipo, "robust": robust}
ANCHORED: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "apo_zero": apo_zero,
    "apo_down": apo_down,
}


class DPO(WithReference, PairPolicy):
    """The loss of a pair is L(Δ) of ``LOSSES`` or L(r⁺, r⁻) of ``ANCHORED``, plus ``rpo_alpha`` times an SFT
    term on chosen answers.

    The SFT term is that of Iterative RPO (Pang et al. 2024, arXiv:2404.19733, eq. 1, which divides by each
    answer's length; here, as in TRL's ``sft`` loss, by all tokens).

    ``reference`` says where log π_ref comes from: ``live`` (a separate frozen model), ``adapter`` (the policy
    with its adapter disabled), ``cached`` (precomputed, in every batch). With ``reference_free`` it is 0.
    Rewards are β times the log-ratio, a sum over tokens.
    """

    def __init__(self, *, reference: str = "live", **options: Json) -> None:
        o = DpoOptions.model_validate(options)
        self.beta, self.smoothing = o.beta, o.label_smoothing
        self.name = o.loss_type
        self.length_normalized, self.alpha = o.length_normalized, o.rpo_alpha or 0.0
        self.mean_of_means = o.mean_of_means
        super().__init__("" if o.reference_free else reference)

    def pair_loss(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        if self.name in ANCHORED:
            return ANCHORED[self.name](chosen, rejected, self.beta)
        return LOSSES[self.name](chosen - rejected, self.beta, self.smoothing)

    def compared(self, logps: Tensor, batch: Batch) -> Tensor:
        ratios = logps - self.reference_logps(logps, batch)
        return token_means(ratios, batch) if self.length_normalized else ratios

    def rewards_and_logps(self, logps: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return logps - self.reference_logps(logps, batch), logps
