"""APOLLO and Adam-mini: seven steps give the weights that the authors' packages gave (``tests/peers``)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.plan.plan import OptimizerSpec
from paceline.strategies.optimizers.build import build_optimizer

PEERS = Path(__file__).parents[2] / "peers"
sys.path.insert(0, str(PEERS))

import optimizer_steps as asked  # noqa: E402

RECORDED = json.loads((PEERS / "recorded/optimizer_steps.json").read_text(encoding="utf-8"))
SPEC: dict[str, Any] = {
    "learning_rate": asked.RATE,
    "weight_decay": asked.DECAY,
    "betas": asked.BETAS,
    "eps": asked.EPS,
}


def compare(found: list[Any], recorded: list[Any]) -> None:
    for ours, theirs in zip(found, recorded, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("own", asked.APOLLO, ids=str)
def test_apollo(own: dict[str, Any]) -> None:
    parameters = [nn.Parameter(asked.values(shape, 50)) for shape in asked.SHAPES]
    named = [(f"model.layers.{n}.q_proj.weight", p) for n, p in enumerate(parameters)]
    optimizer = build_optimizer(OptimizerSpec(name="apollo_adamw", args=own, **SPEC), named)
    compare(asked.stepped([optimizer], parameters), RECORDED[json.dumps(own)])


def test_adam_mini() -> None:
    named = {name: nn.Parameter(asked.values(shape, 50)) for name, shape in asked.NAMED.items()}
    spec = OptimizerSpec(name="adam_mini", args={"dim": 4, "n_heads": 2}, **SPEC)
    optimizer = build_optimizer(spec, named.items())
    compare(asked.stepped([optimizer], list(named.values())), RECORDED["adam_mini"])
