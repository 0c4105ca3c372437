"""How tokens spread over a mixture's experts: what is counted, and the metrics made of it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from model_families import Source, make_batch, spread_out
from tiny_families import tiny_config

from paceline.core.errors import ConfigError
from paceline.models.expert_routing import routers
from paceline.models.factory import HFModelFactory
from paceline.protocols.roles import Output
from paceline.strategies.window.weights import spread_of, tokens_by_expert

NLL = frozenset({Output.NLL})


@pytest.mark.parametrize(("attention", "recompute"), [("paceline", True), ("sdpa", False)])
def test_tokens_are_counted_once_by_the_routers_own_choice_without_fillers(
    attention: str, recompute: bool
) -> None:
    build = HFModelFactory(Source(config=tiny_config("qwen3_moe")), attention=attention, recompute=recompute)
    module = build()
    spread_out(module)
    batch = make_batch((5, 12, 3, 9), labels="some")
    batch.document_ids[2] = -1
    expected = torch.zeros(2, 4, dtype=torch.int64)
    bounds = batch.cu_seqlens.tolist()
    for document in (0, 1, 3):
        ids = batch.input_ids[:, bounds[document] : bounds[document + 1]]
        with torch.no_grad():
            logits = module.hf.base_model(input_ids=ids, output_router_logits=True).router_logits
        for layer, one in enumerate(logits):
            expected[layer] += one.topk(2, dim=-1).indices.flatten().bincount(minlength=4)
    assert module.expert_tokens() is None  # nothing was trained yet
    module.train()(batch, NLL)["nll"].backward()
    counts = module.expert_tokens()
    assert counts is not None and torch.equal(counts, expected) and int(expected.sum()) == 2 * 2 * 26
    assert module.expert_tokens() is None
    with torch.no_grad():
        module(batch, NLL)
    assert module.expert_tokens() is None


def test_metrics_of_a_spread() -> None:
    found = spread_of([2.0, 2.0, 2.0, 2.0, 6.0, 1.0, 1.0, 0.0], 4)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.125)) / math.log(4)
    assert found == {
        "router_max_load": 3.0,
        "router_min_load": 0.0,
        "router_entropy": pytest.approx((1 + entropy) / 2),
        "router_unused_experts": 1.0,
    }
    assert spread_of([0.0] * 4, 4) == {}


def test_replicas_are_added() -> None:
    def root(value: int | None) -> SimpleNamespace:
        counts = None if value is None else torch.tensor([[value, 1]])
        return SimpleNamespace(expert_tokens=lambda: counts)

    both = tokens_by_expert(SimpleNamespace(roots=(root(3), root(4))))  # type: ignore[arg-type]
    assert both is not None and both.tolist() == [[7, 2]]
    assert tokens_by_expert(SimpleNamespace(roots=(root(None),))) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss", "deepseek_v3", "jetmoe"])
def test_frozen_routers_get_no_gradient_and_all_else_does(kind: str) -> None:
    config = {**tiny_config(kind), "output_router_logits": False}
    module = HFModelFactory(Source(config=config), master_dtype=torch.float64, freeze_router=True)().train()
    spread_out(module)
    module(make_batch(), NLL)["nll"].backward()
    without = {name for name, p in module.hf.named_parameters() if p.grad is None}
    assert without and all("router" in name or ".gate." in name for name in without), without
    assert len(without) == len({id(p) for m in routers(module.hf) for p in m.parameters()})


def test_a_model_without_routers_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        HFModelFactory(Source(config=tiny_config("llama")), freeze_router=True)()
    assert caught.value.diagnostics[0].code == "models.no_router"
