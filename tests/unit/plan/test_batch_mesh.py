from __future__ import annotations

import pytest

from paceline.config.sections.training_scale import Parallelism
from paceline.core.errors import ConfigError
from paceline.plan.mesh import BatchSplit, Mesh, legal_pairs, mesh_for, resplit, split_batch
from paceline.plan.plan_json import from_json, to_json


def test_the_global_batch_is_the_product() -> None:
    split = split_batch(4, 8, 2)
    assert split == BatchSplit(4, 8, 2, 64) and from_json(BatchSplit, to_json(split)) == split


def test_legal_pairs_multiply_back() -> None:
    pairs = legal_pairs(24, 4)
    assert pairs == [(1, 6), (2, 3), (3, 2), (6, 1)]
    assert legal_pairs(24, 5) == []


def test_another_number_of_ranks_keeps_the_global_batch() -> None:
    assert resplit(32, 4, prefer_micro=8) == BatchSplit(8, 1, 4, 32)
    assert resplit(32, 1, prefer_micro=8) == BatchSplit(8, 4, 1, 32)
    assert resplit(32, 2, prefer_micro=5) == BatchSplit(4, 4, 2, 32)


def test_ranks_that_cannot_share_name_the_nearest_that_can() -> None:
    with pytest.raises(ConfigError) as caught:
        resplit(32, 3, prefer_micro=8)
    found = caught.value.diagnostics[0]
    assert found.code == "plan.batch_world" and "start 2 or 4 processes" in found.hint


def test_without_sizes_all_processes_are_data_parallel() -> None:
    assert mesh_for(Parallelism(), 4) == Mesh(dp_replicate=4)
    assert mesh_for(Parallelism(sequence_parallel=True, tp_size=1), 4) == Mesh(dp_replicate=4)


def test_written_sizes_are_taken_and_multiply() -> None:
    mesh = mesh_for(Parallelism(dp_replicate_size=2, dp_shard_size=2, tp_size=2), 8)
    assert (mesh.size, mesh.data_parallel_size) == (8, 4) and from_json(Mesh, to_json(mesh)) == mesh
    assert str(mesh) == "dp_replicate 2 × dp_shard 2 × tp 2" and str(Mesh()) == "one process"
