"""How a strategy lays a model out, as far as memory and time follow from it: what a spec says to the search, and of a plan to the cost model."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.cost.starts import CARD, LoadingSpec


@dataclass(frozen=True)
class Storage:
    """Bytes a parameter between steps: weights, gradients, and what only the optimizer holds (fp32 masters and moments).

    ``sent``: bytes of each weight that the rank which stepped it sends to the others, after gradients were averaged whole; 0: as ZeRO does.
    """

    weight: float = 2.0
    gradient: float = 4.0
    optimizer: float = 12.0
    sent: float = 0.0


WHOLE = Storage(weight=6.0, gradient=4.0, optimizer=8.0)  # fp32 weights with 16-bit copies beside them


@dataclass(frozen=True)
class StrategyLayout:
    """One way of a strategy, called ``name`` on a page; ``strategy`` starts it.

    ``zero`` (0 to 3) says what is shared out, as ZeRO's stages do. ``tp``, ``pp``, ``cp``: whether these axes of the mesh are searched; ``hybrid``: whether
    nodes hold copies. ``offload``: none, optimizer, all. ``start``: where a start holds what is whole (None: not looked at). ``packed``: whether 4-bit weights
    are tried under it; ``whole_submodules``: whether a rank computes with whole submodules, so that kernels of several matrices run.
    """

    name: str
    strategy: str
    zero: int = 0
    storage: Storage = WHOLE
    tp: bool = False
    pp: bool = False
    cp: bool = False
    hybrid: bool = False
    offload: str = "none"
    start: LoadingSpec | None = CARD
    packed: bool = False
    whole_submodules: bool = True
    sequence_parallel: bool = True
    stages_a_rank: int = 1

    @property
    def whole_copies(self) -> bool:
        """Whether every rank holds the whole model."""
        return self.zero == 0 and not self.pp
