"""Going on from a checkpoint of another strategy, of other ranks, or of a version that told its data
otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.errors import CheckpointError
from paceline.core.plugins.tables import STRATEGIES
from paceline.plan.explain import GLOBAL_BATCH
from paceline.plan.mesh import BatchSplit, Mesh
from paceline.plan.plan import OptimizerSpec, Precision
from paceline.plan.strategies.spec import state_form, strategy_specs, why_unreadable
from paceline.training.checkpointing.resume import same_training
from paceline.training.checkpointing.resume_compatibility import (
    keep_global_batch,
    other_strategy,
    requantised,
    shard_layout,
)

FP32 = Precision("float32", "float32", "float32", False, "")
FP16 = replace(FP32, compute="float16", scaler=True)
# What 3b6e39d (21 November 2026) wrote beside weights and config: neither ``train_fingerprint`` nor
# ``data_definition``.
BEFORE: dict[str, Any] = {
    "train": {"step": 3, "best_metric": 1.5},
    "algorithm": {},
    "config_digest": "c",
    "data_fingerprint": "5d41402abc",
    "global_batch": 4,
    "seq_len": 96,
    "packing": True,
    "seed": 7,
    "world_size": 2,
    "strategy": "ddp",
    "plan_digest": "p",
}
NOW = {
    **BEFORE,
    "data_fingerprint": "another",
    "train_fingerprint": "t",
    "data_definition": "format 4, source ab",
}


def plan(strategy: str, precision: Precision = FP32) -> Any:
    return SimpleNamespace(strategy=strategy, precision=precision)


def test_moments_in_few_bits_on_other_shards_are_said() -> None:
    def run(strategy: str, optim: str, **mesh: int) -> Any:
        return SimpleNamespace(strategy=strategy, optimizer=OptimizerSpec(name=optim), mesh=Mesh(**mesh))

    saved = {"shard_layout": shard_layout(run("fsdp", "lion_8bit", dp_shard=2, cp=2))}
    assert saved == {"shard_layout": [4, 1]}
    [note] = requantised(saved, run("fsdp", "lion_8bit", dp_shard=2))
    assert (note.code, note.severity.value) == ("resume.requantised", "note")
    assert requantised(saved, run("fsdp", "lion_8bit", dp_shard=4)) == []
    assert requantised(saved, run("fsdp", "lion_32bit", dp_shard=2)) == []
    whole = {"shard_layout": shard_layout(run("single", "lion_8bit"))}
    assert requantised(whole, run("zero_redundancy", "lion_8bit", dp_shard=2)) == []
    assert requantised(whole, run("fsdp", "lion_8bit", dp_shard=2)) != []


def test_every_strategy_says_in_what_form_its_state_is() -> None:
    assert all(spec.state_form is not None for spec in strategy_specs())


@pytest.mark.parametrize("now", STRATEGIES.names())
@pytest.mark.parametrize("before", STRATEGIES.names())
def test_each_reads_every_others_and_says_so(before: str, now: str) -> None:
    said = other_strategy({"strategy": before}, plan(now))
    assert [(d.code, d.severity.value) for d in said] == [("resume.other_strategy", "note")] * (before != now)
    if state_form(before).loss_scale != state_form(now).loss_scale:
        with pytest.raises(CheckpointError, match="loss scale"):
            other_strategy({"strategy": before}, plan(now, FP16))
    else:
        assert not why_unreadable(state_form(before), state_form(now), fp16=True)


@pytest.mark.parametrize(
    ("before", "now"),
    [("mine:Class", "ddp"), ("ddp", "mine:Class"), ("a:A", "b:B"), ("from_tomorrow", "fsdp")],
)
def test_a_form_of_its_own_is_read_by_its_strategy_alone(before: str, now: str) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint\.other_strategy") as caught:
        other_strategy({"strategy": before}, plan(now))
    assert before in caught.value.diagnostics[0].found and now in caught.value.diagnostics[0].found
    assert other_strategy({"strategy": now}, plan(now)) == []


def test_as_many_ranks_that_share_other_rows_keep_the_rows_of_a_step() -> None:
    """From two data-parallel ranks to two stages of a pipeline: the batch is split anew though the ranks
    are as many.
    """
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Planned:
        batch: BatchSplit
        world_size: int

    piped: Any = Planned(BatchSplit(2, 1, 1, 2), 2)
    kept, said = keep_global_batch({"global_batch": 4, "world_size": 2, "data_parallel_size": 2}, piped)
    assert kept.batch == BatchSplit(2, 2, 1, 4) and [d.code for d in said] == ["resume.batch_resplit"]
    assert said[0].evidence == {GLOBAL_BATCH: 4}  # for the lines before the training
    assert keep_global_batch({"global_batch": 4, "world_size": 2, "data_parallel_size": 1}, piped) == (
        piped,
        [],
    )
    # a state that does not say
    assert keep_global_batch({"global_batch": 4, "world_size": 2}, piped) == (piped, [])


def test_a_run_that_moved_goes_on_again_with_the_same_command() -> None:
    """It had kept the rows of more ranks, which its config does not say; another batch is still reported."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Planned:
        batch: BatchSplit
        world_size: int

    moved = {
        "global_batch": 16,
        "world_size": 1,
        "data_parallel_size": 1,
        "config": {"training": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}},
    }
    again: Any = Planned(BatchSplit(8, 1, 1, 8), 1)
    kept, said = keep_global_batch(moved, again)
    assert kept.batch == BatchSplit(8, 2, 1, 16) and [d.code for d in said] == ["resume.batch_resplit"]
    assert "since its start on other ranks" in said[0].what
    other: Any = Planned(BatchSplit(4, 1, 1, 4), 1)
    assert keep_global_batch(moved, other) == (other, [])


def test_a_checkpoint_of_an_earlier_definition_goes_on_with_a_warning() -> None:
    (said,) = same_training(BEFORE, NOW)
    assert (said.code, said.severity.value) == ("resume.data_not_compared", "warning")
    assert "earlier definition" in said.found and "format 4" in said.found
    (said,) = same_training(
        {**NOW, "data_fingerprint": "d", "train_fingerprint": "u", "data_definition": "format 3"}, NOW
    )
    assert said.code == "resume.data_not_compared" and "format 3" in said.found
    for field in ("seed", "seq_len", "packing", "global_batch"):
        with pytest.raises(CheckpointError, match=r"checkpoint\.other_run"):
            same_training({**BEFORE, field: 1234}, NOW)


def test_of_one_definition_another_fingerprint_is_other_data() -> None:
    with pytest.raises(CheckpointError, match="data set"):
        same_training({**NOW, "data_fingerprint": "d", "train_fingerprint": "u"}, NOW)


def test_the_definition_names_whatever_decides_the_tokens() -> None:
    from paceline.data.prepare.fingerprint import code_version, definition

    assert all(f"{name} {value}" in definition() for name, value in code_version().items())
