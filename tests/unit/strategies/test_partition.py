"""What a rank of ZeRO-3 reads of a tensor: the rows that hold its part of the flattened one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.strategies.deepspeed.fill_partitions import element_ranges, flat_block


def cut(rank: int, ranks: int, group: int = 0) -> Any:
    """Rank ``rank`` of ``ranks``, which share each partition again in groups of ``group``."""
    inner = (rank % group, group) if group else (rank, ranks)
    return SimpleNamespace(
        rank=rank, dp_world_size=ranks, rank_in_group=inner[0], num_ranks_in_param_group=inner[1]
    )


@pytest.mark.parametrize("shape", [(), (7,), (5, 3), (4, 3, 2)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_ranks_parts_are_the_tensor_and_no_more_rows_are_read(shape: tuple[int, ...], ranks: int) -> None:
    whole = torch.randn(shape)
    read: list[int] = []

    def block(offsets: Sequence[int], size: Sequence[int]) -> Tensor:
        found = whole[tuple(slice(o, o + n) for o, n in zip(offsets, size, strict=True))]
        read.append(found.numel())
        return found

    parts = []
    for rank in range(ranks):
        for start, count in element_ranges(cut(rank, ranks), whole.numel()):
            parts.append(flat_block(block, shape, start, count))
            row = whole[0].numel() if shape else 1
            assert len(parts[-1]) == count and read[-1] <= count + 2 * (row - 1)
    assert torch.equal(torch.cat(parts), whole.flatten())


def test_hierarchical_partitions_keep_a_groups_part_as_well() -> None:
    """Four ranks in groups of two: a quarter each, and a half within the group."""
    assert list(element_ranges(cut(3, 4, group=2), 10)) == [(6, 4), (9, 1)]
    assert list(element_ranges(cut(0, 4, group=2), 10)) == [(0, 6), (0, 3)]
