"""The plan says where the answers of a prompt are divided among ranks: a reward function sees its rank's."""

from __future__ import annotations

import pytest

from paceline.plan.algorithms.rollout import RolloutSizes, rollout_decision
from paceline.plan.mesh import BatchSplit


@pytest.mark.parametrize(
    ("micro_batch", "pieces", "ranks", "divided"),
    [(8, 1, 1, False), (4, 1, 2, False), (2, 2, 2, False), (2, 1, 4, True), (2, 3, 2, True)],
)
def test_groups_that_ranks_divide_are_said(micro_batch: int, pieces: int, ranks: int, divided: bool) -> None:
    batch = BatchSplit(micro_batch, 1, ranks, micro_batch * ranks)
    reason = rollout_decision(RolloutSizes(batch, group=4, pieces=pieces, passes=1)).reason
    assert ("parts of groups" in reason) is divided
