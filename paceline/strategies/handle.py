"""One model made trainable (or frozen) by a strategy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from paceline.seam.roles import Role


@dataclass
class Handle:
    """One model made trainable (or frozen) by a strategy.

    root       the role's root module, unwrapped: follows ``seam.model.RoleModule``
    module     what is called in training: ``root``, or its wrapper (DDP)
    optimizer  None when frozen
    scaler     the fp16 gradient scaler, or None
    """

    role: Role
    root: nn.Module
    module: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    scaler: torch.amp.GradScaler | None = None

    @property
    def trained(self) -> bool:
        """Whether this model is trained (else frozen)."""
        return self.optimizer is not None

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained, in the root's plain order."""
        return [p for _, p in self.root.plain_named_parameters() if p.requires_grad]  # type: ignore[operator]
