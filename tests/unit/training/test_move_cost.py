"""What a move to another layout costs is said before it: bytes read, and memory of the fullest rank."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import read_manifest
from paceline.core.rundir import RunDir
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Memory, ModelStates
from paceline.plan.strategy_options import EngineOptions
from paceline.protocols.shard import Shard
from paceline.training.checkpointing.resume_compatibility import cost_of_move, shard_layout

STATES = ModelStates(parameters=1 << 20, gradients=1 << 20, optimizer=2 << 20)


class OneRank:
    rank, world_size = 0, 1

    def all_gather_json(self, value: Any) -> list[Any]:
        return [value]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Of one tensor of 1 MiB and a small one."""
    run = RunDir.at(tmp_path / "run")
    shards = [
        Shard("policy", name, "param", (rows, 256), (0, 0), torch.ones(rows, 256))
        for name, rows in (("embedding", 1024), ("norm", 1))
    ]
    return read_manifest(Checkpointer(run, OneRank()).save(1, shards, {}, {}))


def plan(strategy: str, world: int, states: ModelStates | None = STATES, **mesh: int) -> Any:
    memory = Memory(copies=False, largest=states)
    return SimpleNamespace(
        strategy=strategy, world_size=world, mesh=Mesh(**mesh), engine=EngineOptions(), memory=memory
    )


def test_another_layout_is_named_with_its_bytes(manifest: Manifest) -> None:
    [note] = cost_of_move({"strategy": "zero3", "world_size": 8}, plan("ddp", 6, dp_replicate=6), manifest)
    assert note.code == "resume.moved" and "zero3, 8 ranks → ddp, 6 ranks" in note.what
    assert note.found.startswith("1.00 MiB read over all ranks; 4.00 MiB a rank at peak")  # 3 + 1
    [note] = cost_of_move({"strategy": "ddp", "world_size": 1}, plan("fsdp", 4, dp_shard=4), manifest)
    assert "ddp, 1 rank → fsdp, 4 ranks" in note.what and "3.25 MiB a rank at peak" in note.found
    [note] = cost_of_move({"strategy": "ddp", "world_size": 1}, plan("fsdp", 4, None, dp_shard=4), manifest)
    assert "not known" in note.found


def test_the_zero_stage_of_a_deepspeed_file_is_named(manifest: Manifest) -> None:
    """``distributed_strategy: deepspeed`` with a file says the stage only in its options."""
    from paceline.plan.strategy_options import DeepSpeedOptions

    now = plan("deepspeed", 2)
    now.engine = DeepSpeedOptions(zero_stage=2)
    state: dict[str, Any] = {"strategy": "deepspeed", "strategy_label": "zero3", "world_size": 2}
    [note] = cost_of_move(state, now, manifest)
    assert "zero3, 2 ranks → zero2, 2 ranks" in note.what
    assert cost_of_move({**state, "strategy_label": "zero2"}, now, manifest) == []


def test_the_same_layout_has_no_note(manifest: Manifest) -> None:
    now = plan("fsdp", 4, dp_shard=4)
    state: dict[str, Any] = {"strategy": "fsdp", "world_size": 4, "shard_layout": shard_layout(now)}
    assert cost_of_move(state, now, manifest) == []
    assert cost_of_move({"strategy": "fsdp", "world_size": 4}, now, manifest) == []  # of an earlier version
    [note] = cost_of_move({**state, "shard_layout": [2, 2]}, now, manifest)
    assert note.code == "resume.moved"
