"""Adam-mini: AdamW with one second moment for each block of a parameter."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from paceline.strategies.optimizers.galore_adamw import Groups, StepsOneByOne, Values

BLOCK = "block"  # key of the parameter groups
_ELEMENT, _HEAD, _ROW, _TENSOR = "element", "head", "row", "tensor"
#: parts of names, the first that fits: as the authors' package has them
_BLOCKS = (
    (_ELEMENT, ("bias",)),
    (_HEAD, ("k_proj", "q_proj", "wq", "wk", "query", "key")),
    (_ROW, ("embed", "embd", "wte", "lm_head", "output", "final_layer")),
    (_ROW, ("v_proj", "wv", "value", "o_proj", "wo", "attn.proj", "feed_forward", "linear", "mlp")),
)
_STEP, _MEAN, _SQUARE = "step", "exp_avg", "exp_avg_sq"


def block_of(name: str) -> str:
    """Return what of the parameter ``name`` shares a second moment. Nothing, a head of queries or keys, a row
    (a token's or a neuron's), or the whole tensor.
    """
    small = name.lower()
    return next((kind for kind, parts in _BLOCKS if any(part in small for part in parts)), _TENSOR)


class AdamMini(StepsOneByOne):
    """AdamW whose second moment is a mean over the blocks of ``block_of`` (Zhang et al. 2024,
    arXiv:2406.16793). A head has dim² / n_heads numbers; without them each row of queries and keys has its
    own. The state of a parameter is tensors and a count.
    """

    def __init__(
        self,
        params: Groups,
        dim: int = 0,
        n_heads: int = 0,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0, BLOCK: _TENSOR})
        self.betas, self.eps = betas, eps
        self.head = int(dim) ** 2 // int(n_heads) if dim and n_heads else 0

    def step_one(self, parameter: nn.Parameter, group: Values) -> None:
        """Step one parameter that has a gradient."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        lr, decay = (float(str(group[name])) for name in ("lr", "weight_decay"))
        first, second = self.betas
        by_head = group[BLOCK] == _HEAD and self.head > 0
        # [rows or heads, 1], one number, or the gradient's own shape: what of the matrix shares a step
        # size.
        mean = self._mean(gradient.square(), str(group[BLOCK]))
        if not state:
            state |= {_STEP: 0, _MEAN: torch.zeros_like(gradient), _SQUARE: torch.zeros_like(mean)}
        state[_STEP] += 1
        state[_SQUARE].mul_(second).add_(mean, alpha=1 - second)
        state[_MEAN].lerp_(gradient, 1 - first)
        # Adam's bias corrections, for the second moment here and the first below.
        size = (state[_SQUARE].sqrt() / math.sqrt(1 - second ** state[_STEP])).add_(self.eps)
        update = state[_MEAN].view(-1, self.head) if by_head else state[_MEAN]
        update = update / size / (1 - first ** state[_STEP])
        # Decoupled decay, before the update, as in AdamW.
        parameter.mul_(1 - lr * decay).sub_(update.view_as(parameter), alpha=lr)

    def _mean(self, squares: Tensor, block: str) -> Tensor:
        if block == _ELEMENT:
            return squares
        if block == _TENSOR:
            return squares.mean().view(1)
        by_head = block == _HEAD and self.head > 0
        return (squares.view(-1, self.head) if by_head else squares).mean(1, keepdim=True)
