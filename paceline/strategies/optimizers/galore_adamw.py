"""GaLore: AdamW whose moments live in a low-rank subspace of each matrix's gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

PROJECTED = "projected"  # key of the parameter groups whose gradients are projected
LEFT, RIGHT = "left", "right"
Groups = Iterable[dict[str, object]]  # parameters and their options
Values = Mapping[str, object]
_STEP, _MEAN, _SQUARE = "step", "exp_avg", "exp_avg_sq"


@dataclass(frozen=True)
class Options:
    """Options of a parameter group."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    rank: int
    update_proj_gap: int
    scale: float
    proj_type: str
    projected: bool

    @staticmethod
    def of(group: Values) -> Options:
        values = {option.name: group[option.name] for option in fields(Options)}
        return Options(**values)  # type: ignore[arg-type]


class StepsOneByOne(torch.optim.Optimizer):
    """An optimizer that steps its parameters in turn."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one step over all parameters that have a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.step_one(parameter, group)
        return loss

    def step_one(self, parameter: nn.Parameter, group: Values) -> None:
        """Step one parameter that has a gradient."""
        raise NotImplementedError


class GaLoreAdamW(StepsOneByOne):
    """AdamW over all groups; in those with ``projected``, over the gradient's projection (Zhao et al. 2024,
    arXiv:2403.03507, algorithm 2).

    Every ``update_proj_gap`` steps the leading ``rank`` singular vectors of a matrix's gradient become its
    basis: right ones R (rank × columns) or left ones L (rows × rank), after ``proj_type``: ``std`` projects
    the shorter side away, ``reverse_std`` the longer, ``full`` both. Moments are those of G Rᵀ (or Lᵀ G), and
    the update is projected back and multiplied by ``scale``. Moments stay as they are when the basis changes.

    As in the authors' ``galore_torch``, ``eps`` is added before the bias correction and the weights decay
    after the update; moments have the gradient's dtype. The state of a parameter is tensors and a count.
    """

    def __init__(
        self,
        params: Groups,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rank: int = 128,
        update_proj_gap: int = 200,
        scale: float = 0.25,
        proj_type: str = "std",
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "rank": int(rank),
            "update_proj_gap": int(update_proj_gap),
            "scale": scale,
            "proj_type": proj_type,
            PROJECTED: False,
        }
        super().__init__(params, defaults)

    def step_one(self, parameter: nn.Parameter, group: Values) -> None:
        """Step one parameter that has a gradient."""
        state, gradient, options = self.state[parameter], parameter.grad, Options.of(group)
        assert gradient is not None
        step = state.get(_STEP, 0)
        # Step 0 too: the first gradient gives the first basis.
        if options.projected and step % options.update_proj_gap == 0:
            state |= self.new_basis(gradient, options, step)
        low = _projected(gradient, state) if options.projected else gradient
        if not step:
            state |= {_MEAN: torch.zeros_like(low), _SQUARE: torch.zeros_like(low)}
        mean, square = state[_MEAN], state[_SQUARE]
        state[_STEP] = step + 1
        first, second = options.betas
        mean.mul_(first).add_(low, alpha=1 - first)
        square.mul_(second).addcmul_(low, low, value=1 - second)
        update = mean / square.sqrt().add_(options.eps)
        if options.projected:
            update = self.lifted(update, low, gradient, state, options)
        # ``step`` counts from 0 here, Adam's formulas from 1.
        corrected = math.sqrt(1 - second ** (step + 1)) / (1 - first ** (step + 1))
        parameter.add_(update, alpha=-options.lr * corrected)
        if options.weight_decay:
            parameter.mul_(1 - options.lr * options.weight_decay)

    def new_basis(self, gradient: Tensor, options: Options, step: int) -> dict[str, Tensor]:
        """Return what ``gradient`` is projected by from ``step`` on."""
        return basis(gradient, options.rank, options.proj_type)

    def lifted(
        self, update: Tensor, low: Tensor, gradient: Tensor, state: dict[str, Tensor], options: Options
    ) -> Tensor:
        """Return a matrix's update, made of Adam's ``update`` of its projected gradient ``low``."""
        return _back(update, state).mul_(options.scale)


def basis(gradient: Tensor, rank: int, proj_type: str) -> dict[str, Tensor]:
    """Return the leading singular vectors of ``gradient`` (rows × columns), in its dtype: ``left`` (rows ×
    rank), ``right`` (rank × columns) or both. The largest number of each left one is positive.

    A decomposition does not determine the signs, so rounding of a gradient would choose them. Moments are
    kept when the basis changes, so strategies and processors would differ by 1e-3 after a few steps.
    """
    rows, columns = gradient.shape
    std = RIGHT if rows >= columns else LEFT
    sides = {"std": {std}, "reverse_std": {LEFT, RIGHT} - {std}, "full": {LEFT, RIGHT}}
    chosen = sides.get(proj_type, {proj_type})
    low = gradient.dtype in (torch.bfloat16, torch.float16)
    # 16-bit gradients are decomposed in fp32: LAPACK has no half precision.
    left, _, right = torch.linalg.svd(gradient.float() if low else gradient, full_matrices=False)
    left, right = left[:, :rank], right[:rank]
    # [1, rank]: the sign of each left vector's largest entry; its right partner is flipped with it.
    signs = left.gather(0, left.abs().argmax(0, keepdim=True)).sign()
    vectors = {LEFT: left * signs, RIGHT: right * signs.T}
    return {side: vectors[side].to(gradient.dtype).contiguous() for side in sorted(chosen)}


def _projected(gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
    if LEFT in state:
        gradient = state[LEFT].T @ gradient
    return gradient @ state[RIGHT].T if RIGHT in state else gradient


def _back(update: Tensor, state: dict[str, Tensor]) -> Tensor:
    if LEFT in state:
        update = state[LEFT] @ update
    return update @ state[RIGHT] if RIGHT in state else update
