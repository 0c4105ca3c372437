"""Losses of direct preference optimisation as pure functions of a pair's log-ratio gap.

With h(y) = log π(y|x) - log π_ref(y|x), the sum over the answer's tokens (a mean with length-normalised
log-ratios), the gap is Δ = h(y_chosen) - h(y_rejected), and β Δ is the difference of the implicit rewards β
h(y).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor

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


LOSSES: Mapping[str, Loss] = {"sigmoid": sigmoid, "hinge": hinge, "ipo": ipo, "robust": robust}
