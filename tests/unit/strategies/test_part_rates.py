"""Rates of single parts of a model: each parameter gets that of the innermost module with one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.plan.model.family import composites
from paceline.plan.plan import OptimizerSpec
from paceline.runlog.lines import metric_text
from paceline.strategies.optimizers.build import build_optimizer, set_learning_rate

RATIOS = {"visual": 0.1, "visual.merger": 0.5}
EXPECTED = {
    "model.visual.blocks.0.qkv.weight": 0.1,
    "model.visual.merger.mlp.weight": 0.5,
    "model.language_model.layers.0.up_proj.weight": 1.0,
    "model.visualiser.weight": 1.0,
    "base_model.model.model.visual.blocks.0.qkv.lora_B.weight": 0.4,
    "model.visual.blocks.0.norm.bias": 0.4,
}


@pytest.mark.parametrize("optim", ["adamw_torch", "muon", "galore_adamw", "adam_mini", "sgd", "adafactor"])
def test_a_part_has_its_own_rate(optim: str) -> None:
    named = {name: nn.Parameter(torch.ones(*((4, 4) if "bias" not in name else (4,)))) for name in EXPECTED}
    spec = OptimizerSpec(optim, learning_rate=1e-3, weight_decay=0.1, b_rate_ratio=4.0, rate_ratios=RATIOS)
    optimizer = build_optimizer(spec, named.items())
    for rate in (None, 1e-3, 2e-4):
        if rate is not None:
            set_learning_rate(optimizer, rate)
        of = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        expected = {name: (rate or 1e-3) * ratio for name, ratio in EXPECTED.items()}
        assert {name: of[id(p)] for name, p in named.items()} == pytest.approx(expected)


def test_the_projector_may_lie_in_the_tower() -> None:
    assert composites()["qwen3_vl"].parts == {
        "visual": "vision",
        "visual.merger": "projector",
        "visual.deepstack_merger_list": "projector",
    }


def test_the_rate_of_a_part_is_logged_as_a_rate() -> None:
    assert metric_text("learning_rate/vision", 1e-5) == "lr vision 1e-05"
