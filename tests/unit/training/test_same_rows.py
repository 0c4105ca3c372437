"""The ranks of one tp, cp or pp group are held to the same rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.core.errors import PacelineError
from paceline.protocols.batch import Batch
from paceline.protocols.window import Window
from paceline.training.rank_checks import check_same_rows, rows_digest


def batch(first: int) -> Batch:
    tokens = torch.arange(first, first + 6)[None]
    return Batch(
        tokens,
        tokens + 1,
        torch.arange(6)[None],
        torch.tensor([0, 4, 6], dtype=torch.int32),
        4,
        torch.tensor([first, first + 1]),
        2,
    )


class Peers:
    """A world whose other ranks have already said what they read."""

    def __init__(self, rank: int, said: list[Any]) -> None:
        self.rank, self.said = rank, said

    def all_gather_json(self, value: Any) -> list[Any]:
        return [*self.said[: self.rank], value, *self.said[self.rank :]]


def test_equal_rows_pass_and_others_are_named() -> None:
    mine, theirs = Window(4, 0, [batch(0), batch(9)]), Window(4, 0, [batch(0), batch(8)])
    check_same_rows(Peers(1, [[0, rows_digest(mine)], [1, rows_digest(theirs)]]), 0, mine)
    with pytest.raises(PacelineError) as caught:
        check_same_rows(Peers(1, [[0, rows_digest(theirs)], [1, rows_digest(mine)]]), 0, mine)
    found = caught.value.diagnostics[0]
    assert found.code == "training.rows_differ" and found.where == "step 5"
    assert rows_digest(mine) in found.found and "rank 0" in found.found and "rank 1" in found.found


def test_the_digest_sees_ids_labels_and_the_cut_into_micro_batches() -> None:
    base = batch(0)
    other_id = replace(base, document_ids=torch.tensor([5, 6]))
    other_label = replace(base, labels=base.labels.clone().fill_(-100))
    windows = [[base, base], [base], [base, other_id], [base, other_label], [other_id, base]]
    assert len({rows_digest(Window(0, 0, batches)) for batches in windows}) == len(windows)
