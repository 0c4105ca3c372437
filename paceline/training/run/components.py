"""What a run trains with: models, algorithm and windows, at the step to resume from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from paceline.algorithms.algorithm import Algorithm
from paceline.core.json_types import JsonObject
from paceline.data.packed_source import PackedSource
from paceline.protocols.batch import Batch
from paceline.protocols.shard import Shard
from paceline.protocols.window import Window
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.training.loop.train_state import TrainState
from paceline.training.loop.window_source import Epochs

Evaluation = Callable[[PackedSource], dict[str, float]]  # of rows or prompts


class Windows(Protocol):
    """The windows of a run from a step on: from rows (``training.windows``) or rollouts
    (``training.rollout.windows``).
    """

    def __iter__(self) -> Iterator[Window]: ...

    def filler(self) -> Batch:
        """Return a micro-batch of weight 0 with every field of a real one."""
        ...

    def state(self) -> JsonObject:
        """Return what a checkpoint must hold beyond the position, JSON."""
        ...

    def shards(self, step: int) -> Iterator[Shard]:
        """Return the tensors that a checkpoint after ``step`` steps must hold beyond the position."""
        ...


@dataclass(frozen=True)
class Parts:
    """The parts of a trainer: ``handles`` by role, ``state`` at the step to resume from, ``evaluate`` for a
    source of rows (or prompts).
    """

    runner: Runner
    algorithm: Algorithm
    handles: Handles
    windows: Windows
    epochs: Epochs
    state: TrainState
    evaluate: Evaluation
