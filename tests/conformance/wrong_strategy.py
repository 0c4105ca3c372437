"""A strategy that is wrong on purpose: its ranks never meet. The suite must say so."""

from __future__ import annotations

from torch import nn

from paceline.seam.roles import Role
from paceline.strategies.base import Strategy


class Forgetful(Strategy):
    """Each rank trains on its own rows."""

    def wrap(self, role: Role, root: nn.Module) -> nn.Module:
        return root
