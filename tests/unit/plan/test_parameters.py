"""The torch-free list of parameters against the models that Transformers builds (on the meta device)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from paceline.plan.model.parameter_list import parameters_of
from paceline.plan.model.read_config import scoring, shape_from_config
from paceline.strategies.optimizers.build import decays

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 32,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 32}
CASES: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, SIZES)
        for name in (
            "llama",
            "mistral",
            "mixtral",
            "qwen2",
            "qwen3",
            "gemma",
            "gemma2",
            "gemma3_text",
            "phi",
            "phi3",
        )
    ),
    ("gpt2", GPT2),
    ("gpt2", {**GPT2, "n_inner": 96}),
    ("gpt_neox", SIZES),
    (
        "llama",
        {**SIZES, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 24},
    ),
    ("qwen3", {**SIZES, "attention_bias": True}),
    ("gemma", {**SIZES, "tie_word_embeddings": False}),
    ("gpt_neox", {**SIZES, "attention_bias": False}),
    ("mixtral", {**SIZES, "num_local_experts": 4}),
    (
        "qwen3_moe",
        {
            **SIZES,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [],
        },
    ),
]


@pytest.mark.parametrize(("family", "sizes"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_names_shapes_and_order_are_those_of_transformers(family: str, sizes: dict[str, Any]) -> None:
    config = AutoConfig.for_model(family, pad_token_id=0, **sizes)
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    shape = shape_from_config({"model_type": family, **sizes})
    listed = parameters_of(shape)
    assert [(p.name, p.shape) for p in listed] == [(n, tuple(p.shape)) for n, p in model.named_parameters()]
    assert sum(p.numel for p in listed) == shape.num_parameters
    assert [p.decays for p in listed] == [decays(n, p) for n, p in model.named_parameters()]
    layered = [p for p in listed if p.layer is not None]
    assert {p.layer for p in layered} == {0, 1} and all(f".{p.layer}." in p.name for p in layered)


@pytest.mark.parametrize(("family", "sizes"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_a_reward_model_has_a_head_of_one_number(family: str, sizes: dict[str, Any]) -> None:
    auto: Any = AutoModelForSequenceClassification
    with torch.device("meta"):
        model = auto.from_config(AutoConfig.for_model(family, pad_token_id=0, num_labels=1, **sizes))
    shape = scoring(shape_from_config({"model_type": family, **sizes}))
    assert [(p.name, p.shape) for p in parameters_of(shape)] == [
        (n, tuple(p.shape)) for n, p in model.named_parameters()
    ]
    assert sum(p.numel for p in parameters_of(shape)) == shape.num_parameters
    assert shape.matmul_parameters < shape_from_config({"model_type": family, **sizes}).matmul_parameters


def test_an_unknown_family_is_listed_as_a_llama_and_said_to_be_about() -> None:
    shape = shape_from_config({"model_type": "olmo_of_tomorrow", **SIZES})
    assert not shape.exact and parameters_of(shape)[0].name == "model.embed_tokens.weight"
