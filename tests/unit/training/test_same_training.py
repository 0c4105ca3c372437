"""What a resumed run may change: the evaluation set, which is said; never what is trained."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.errors import CheckpointError
from paceline.training.checkpointing.resume import FIXED, same_training

STATE: dict[str, Any] = {
    "data_fingerprint": "d",
    "train_fingerprint": "t",
    "data_definition": "v",
    "global_batch": 8,
    "seq_len": 64,
    "packing": True,
    "seed": 1,
    "train": {"best_metric": 1.25},
}


def test_the_same_run_says_nothing() -> None:
    assert same_training(STATE, STATE) == []


def test_another_evaluation_set_goes_on_and_is_said() -> None:
    (note,) = same_training(STATE, {**STATE, "data_fingerprint": "other"})
    assert note.code == "resume.other_evaluation" and "1.25" in note.found
    (note,) = same_training({**STATE, "train": {"best_metric": None}}, {**STATE, "data_fingerprint": "other"})
    assert note.found == ""


@pytest.mark.parametrize("field", [f for f in FIXED if f != "data_fingerprint"])
def test_what_is_trained_stays(field: str) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint\.other_run"):
        same_training(STATE, {**STATE, "data_fingerprint": "other", field: "changed"})


@pytest.mark.parametrize(
    "before", [{"train_fingerprint": "u"}, {"train_fingerprint": ""}, {"train_fingerprint": None}]
)
def test_other_rows_and_checkpoints_that_do_not_know_are_refused(before: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="data set"):
        same_training({**STATE, **before}, {**STATE, "data_fingerprint": "other"})
    if not before["train_fingerprint"]:
        assert same_training({**STATE, **before}, STATE) == []
