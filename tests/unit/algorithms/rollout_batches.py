"""Ranks of a rollout without processes, for the tests of what an algorithm makes of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.protocols.rollout import RolloutAnswers, Sum


class Rank:
    """Sums over ranks that are run one after the other, twice: the second time everybody's numbers are
    known.
    """

    def __init__(self, rank: int, shared: dict[int, dict[int, list[float]]]) -> None:
        self.rank, self.shared, self.calls = rank, shared, 0

    def __call__(self, values: Sequence[float]) -> list[float]:
        self.calls += 1
        self.shared.setdefault(self.calls, {})[self.rank] = list(values)
        return [sum(column) for column in zip(*self.shared[self.calls].values(), strict=True)]


def alone(total: Sum = list, **known: Any) -> RolloutAnswers:
    """What one rank is told of a rollout; ``known`` in place of nothing."""
    nothing = torch.zeros(0)
    return RolloutAnswers(
        **{
            "advantages": nothing,
            "groups": nothing.long(),
            "is_scored": nothing.bool(),
            "places": [],
            **known,
        },
        total=total,
    )
