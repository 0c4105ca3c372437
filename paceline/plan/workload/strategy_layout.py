"""How a strategy lays out a model, as far as memory and step time depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.workload.startup_memory import CARD, LoadingSpec


@dataclass(frozen=True)
class Storage:
    """Bytes per parameter between steps: weights, gradients, optimizer state.

    ``optimizer``: moments, and fp32 masters if they are separate. ``sent``: bytes per weight that the rank
    which updated it sends to the others, after a full gradient all-reduce (``ZeroRedundancyOptimizer``); 0:
    communication as in ZeRO.
    """

    weight: float = 2.0
    gradient: float = 4.0
    optimizer: float = 12.0
    sent: float = 0.0


@dataclass(frozen=True)
class Gathering:
    """How sharded weights are gathered for a micro-batch.

    ``reshards``: a layer's weights are freed after its forward and gathered again for its backward; else all
    of them stay. ``one_unit``: the whole model is gathered at once. ``whole_gradients``: up to these bytes
    (fp32) a rank sums unsharded gradients over a window's micro-batches.
    """

    reshards: bool = True
    one_unit: bool = False
    whole_gradients: int = 0

    @property
    def keeps_all(self) -> bool:
        """Whether all weights are gathered when the backward begins."""
        return self.one_unit or not self.reshards


WHOLE = Storage(weight=6.0, gradient=4.0, optimizer=8.0)  # fp32 weights plus 16-bit copies


@dataclass(frozen=True)
class StrategyLayout:
    """One layout of a strategy, shown as ``name`` in tables and started by ``strategy``.

    ``zero``: ZeRO stage (0 to 3), i.e. which states are sharded. ``tp``, ``pp``, ``cp``: search these mesh
    axes. ``hybrid``: shard within a node and replicate across nodes. ``offload``: none, optimizer or all;
    ``offloaded``: the share of the optimizer states that is (ZeRO-Offload++).
    ``start``: where the whole model is held at startup (None: not checked). ``packed``: supports 4-bit base
    weights. ``whole_submodules``: a rank computes with unsharded submodules, so kernels fused over several
    matrices run. ``autotp``: DeepSpeed shards by tensors, by column and row only.
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
    offloaded: float = 1.0
    start: LoadingSpec | None = CARD
    packed: bool = False
    whole_submodules: bool = True
    sequence_parallel: bool = True
    stages_a_rank: int = 1
    autotp: bool = False
    gathering: Gathering = Gathering()

    @property
    def whole_copies(self) -> bool:
        """Whether every rank holds the whole model."""
        return self.zero == 0 and not self.pp
