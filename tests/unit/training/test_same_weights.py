"""Copies of the same weights are held to the same bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from paceline.core.errors import PacelineError
from paceline.plan.mesh import Mesh
from paceline.training.rank_checks import check_same_weights


class Recorder:
    """A world of one that remembers what was said."""

    rank = 0

    def __init__(self) -> None:
        self.said: list[Any] = []

    def all_gather_json(self, value: Any) -> list[Any]:
        self.said.append(value)
        return [value]


class Pair:
    """Two ranks: this one, and another whose words are played back."""

    rank = 0

    def __init__(self, other: list[Any]) -> None:
        self.other = list(other)

    def all_gather_json(self, value: Any) -> list[Any]:
        return [value, self.other.pop(0)]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def words(root: nn.Module, rank: int, mesh: Mesh) -> list[Any]:
    """What a rank says of ``root``, and then its sums by parameter."""
    recorder = Recorder()
    check_same_weights(recorder, mesh.coordinates(rank), 0, {"policy": root})
    sums = {
        f"policy.{n} {tuple(p.shape)}": int(p.detach().view(torch.int32).sum())
        for n, p in root.named_parameters()
    }
    return [*recorder.said, sums]


def test_one_bit_of_one_parameter_is_named() -> None:
    mine, other, mesh = model(), model(), Mesh(dp_replicate=2)
    check_same_weights(Pair(words(other, 1, mesh)), mesh.coordinates(0), 3, {"policy": mine})
    other[1].weight.data.view(torch.int32)[2, 1] ^= 1
    with pytest.raises(PacelineError) as caught:
        check_same_weights(Pair(words(other, 1, mesh)), mesh.coordinates(0), 3, {"policy": mine})
    found = caught.value.diagnostics[0]
    assert (found.code, found.where) == ("training.weights_differ", "after step 3")
    assert "policy.1.weight" in found.found and "1 of 4" in found.found


def test_parts_of_tensor_parallel_layers_and_frozen_weights_are_not_compared() -> None:
    mine, other, mesh = model(), model(), Mesh(tp=2)
    other[0].weight.data += 1
    check_same_weights(Pair(words(other, 1, mesh)), mesh.coordinates(0), 1, {"policy": mine})
    frozen = copy.deepcopy(other).requires_grad_(False)
    replicas = Mesh(dp_replicate=2)
    check_same_weights(
        Pair(words(frozen, 1, replicas)), replicas.coordinates(0), 1, {"policy": mine.requires_grad_(False)}
    )
