"""APOLLO: AdamW that scales each matrix's gradient by what Adam makes of its low-rank projection."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.strategies.optimizers.galore_adamw import LEFT, RIGHT, GaLoreAdamW, Groups, Options

_SEED, _DRAWS = 1, 15  # of the first projection; numbers drawn for the seed of the next
_GROWTH, _TINY = 1.01, 1e-8
_NORM = "norm"  # of the last scaled gradient, in a matrix's state


class ApolloAdamW(GaLoreAdamW):
    """GaLore's moments; the update is the gradient times a factor for each channel of the longer side, or for
    the tensor (Zhu et al. 2024, arXiv:2412.05270, algorithm 1).

    Every ``update_proj_gap`` steps the projection is drawn anew (``proj: random``, the only one). A factor is
    the norm of Adam's update of the projected gradient over the norm of that gradient. The update grows by at
    most 1 % a step (Chen et al. 2024, arXiv:2410.01623). It is multiplied by the root of ``scale``: after
    that limit, or before it with ``scale_front``.

    Draws are made on the host, by one seed for all matrices (as the authors' package has it layer by layer).
    So they do not depend on how the matrices are divided among ranks.
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
        scale: float = 1.0,
        proj: str = "random",
        proj_type: str = "std",
        scale_type: str = "channel",
        scale_front: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, rank, update_proj_gap, scale, proj_type)
        assert proj == "random"
        self.of_channels, self.scale_front = scale_type == "channel", scale_front

    def new_basis(self, gradient: Tensor, options: Options, step: int) -> dict[str, Tensor]:
        """Return the projection of ``gradient`` (rows × columns) from ``step`` on: columns or rows go."""
        rows, columns = gradient.shape
        side, shape = (RIGHT, (options.rank, columns)) if rows >= columns else (LEFT, (rows, options.rank))
        # A chain of seeds from the first one: the next draw after a resume needs the step alone, and no
        # generator's state.
        seed = _SEED
        for _ in range(step // options.update_proj_gap):
            drawn = torch.randint(2**63 - 1, (_DRAWS,), generator=torch.Generator().manual_seed(seed))
            seed = int(drawn[-1])
        made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / math.sqrt(options.rank)
        return {side: made.to(gradient)}

    def lifted(
        self, update: Tensor, low: Tensor, gradient: Tensor, state: dict[str, Tensor], options: Options
    ) -> Tensor:
        """Return the gradient scaled. ``update``: Adam's of ``low``, the projected gradient."""
        dim = None if not self.of_channels else 1 if RIGHT in state else 0
        # [rows, 1], [1, columns] or one number: how much larger Adam's step is than the gradient, seen
        # through the projection.
        factor = update.norm(dim=dim, keepdim=True) / (low.norm(dim=dim, keepdim=True) + _TINY)
        scaled, root = gradient * factor, math.sqrt(options.scale)
        if self.scale_front:
            scaled.mul_(root)
        size = scaled.norm().view(1)
        if _NORM in state:
            # 1 while the norm grows by less than 1 %, else the factor by which it exceeds that (the
            # norm-growth limiter).
            limit = (size / (state[_NORM] + _TINY)).clamp_min(_GROWTH) / _GROWTH
            scaled, size = scaled / limit, size / limit
        state[_NORM] = size
        return scaled if self.scale_front else scaled.mul_(root)
