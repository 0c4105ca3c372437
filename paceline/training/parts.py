"""What a run trains with: models, algorithm and windows, standing at the step to go on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard
from paceline.protocols.window import Window
from paceline.strategies.base import Runner
from paceline.training.state import TrainState
from paceline.training.windows import Epochs

Evaluation = Callable[[Any], dict[str, float]]  # of a source of rows, or of prompts


class Windows(Protocol):
    """The windows of a run from a step on: rows that are read (``training.windows``), or rollouts (``training.rollout.windows``)."""

    def __iter__(self) -> Iterator[Window]: ...

    def filler(self) -> Batch:
        """A micro-batch that weighs nothing, with every field a real one has."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What a checkpoint must hold beside the position, JSON."""
        ...

    def shards(self, step: int) -> Iterator[Shard]:
        """What a checkpoint after ``step`` steps must hold beside the position."""
        ...


@dataclass(frozen=True)
class Parts:
    """The parts that a trainer is made of; ``handles`` by role, ``state`` at the step to go on from, ``evaluate`` of a source of rows (or prompts)."""

    runner: Runner
    algorithm: Any
    handles: Mapping[Role, Any]
    windows: Windows
    epochs: Epochs
    state: TrainState
    evaluate: Evaluation
