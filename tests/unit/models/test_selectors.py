"""Attention that selects its keys: the indexer stays as it is, every trained weight has a gradient, adapters
leave it out, and answers are Transformers' own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_families import Source, make_batch, reference_model, spread_out
from tiny_families import tiny_config

from paceline.core.errors import ConfigError
from paceline.generation.decoding.key_value_cache import obstacle
from paceline.generation.decoding.layer_states import cache_for
from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.models.attention.sparse_indexer import selectors
from paceline.models.factory import HFModelFactory
from paceline.plan.model.family import families
from paceline.plan.plan import AdapterSpec
from paceline.protocols.roles import Output

FEW = ("deepseek_v32", "deepseek_v4")
REST = sorted(kind for kind, row in families().items() if row.selects and kind not in FEW)
KINDS = [*FEW, *(pytest.param(kind, marks=pytest.mark.slow) for kind in REST)]
PROMPTS = ((5, 9, 4, 11), (7, 3), (8, 6, 12, 5, 9, 14, 3), (7, 3), (4, 10, 5, 6))
SPEC = AdapterSpec(r=4, alpha=8, dropout=0.0, target_modules=("all-linear",))


def build(kind: str, **options: Any) -> Any:
    module = HFModelFactory(Source(config=tiny_config(kind)), **options)()
    spread_out(module)
    return module


def test_the_families_are_those_that_transformers_has() -> None:
    assert {*FEW, *REST} >= {"glm_moe_dsa", "minimax_m3_vl_text", "axk2"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_trained_weight_has_a_gradient_and_an_indexer_none(kind: str) -> None:
    """Also where no document is long enough for a compressed key: DDP waits for every gradient."""
    module = build(kind).train()
    assert "stay as loaded" in module.notes()["selectors"]
    for lengths in ((9, 14), (1, 1)):
        module.zero_grad()
        module(make_batch(lengths), frozenset({Output.NLL}))["nll"].backward()
        for name, parameter in module.plain_named_parameters():
            assert parameter.requires_grad == (parameter.grad is not None) == ("indexer" not in name), name


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_are_transformers_own_one_by_one(kind: str) -> None:
    """Prompts of several lengths, one asked twice, answers of several lengths: rows leave the batch."""
    hf = build(kind).hf.eval()
    requests = [Request(prompt, i, 4 + 2 * i) for i, prompt in enumerate(PROMPTS)]
    engine = LocalEngine(hf, pad_id=0, stop_ids=(2,), rows=4)
    found = engine.generate(requests, RolloutSampling(temperature=0.0))
    clean = reference_model(hf)
    for request, answer in zip(requests, found, strict=True):
        ids = torch.tensor([request.prompt])
        said = clean.generate(ids, max_new_tokens=request.max_tokens, do_sample=False, eos_token_id=2)
        assert list(answer.tokens) == said[0, ids.shape[1] :].tolist()
    assert obstacle(hf.config, cache_for(hf, 1).layers)  # what an indexer keeps has no place in fixed buffers


def test_adapters_leave_an_indexer_out_and_reach_layers_of_the_same_name() -> None:
    """MiniMax-M3's attention and its indexer both have a ``q_proj``."""
    for spec in (SPEC, AdapterSpec(r=4, alpha=8, dropout=0.0, target_modules=("q_proj",))):
        module = build("minimax_m3_vl_text", adapter=spec)
        named = [name for name, _ in module.hf.named_parameters() if "lora_A" in name]
        assert any("self_attn.q_proj" in name for name in named)
        assert not any("indexer" in name for name in named)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"target_modules": ("wq_b",)}, "models.adapter_targets"),
        (
            {"target_modules": ("q_b_proj",), "modules_to_save": ("indexer",)},
            "models.adapter_modules_to_save",
        ),
    ],
)
def test_an_indexer_is_refused_by_name(change: dict[str, Any], code: str) -> None:
    spec = AdapterSpec(**{"r": 4, "alpha": 8, "dropout": 0.0, **change})
    with pytest.raises(ConfigError, match=code) as caught:
        build("deepseek_v32", adapter=spec)
    assert "no gradient reaches" in caught.value.diagnostics[0].what


def test_frozen_parts_are_those_of_the_indexers() -> None:
    hf = build("deepseek_v4").hf
    inner = {id(p) for _, part in selectors(hf) for p in part.parameters()}
    assert inner and inner == {id(p) for p in hf.parameters() if not p.requires_grad}
