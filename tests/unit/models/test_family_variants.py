"""Families whose config chooses other layers than their defaults: each is what Transformers' own class is,
and no layer of a family goes untried.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
from family_answers import answers_otherwise
from family_sweep import exported_otherwise, losses_otherwise
from model_families import Source, spread_out
from tiny_families import tiny_config
from torch import nn

from paceline.models.factory import HFModelFactory
from paceline.plan.model.family import families

FEW = {"olmo": {"clip_qkv": 0.5}, "gemma4_text": {"enable_moe_block": True, "num_experts": 4}}
FEW["gemma4_text"] |= {"top_k_experts": 2, "moe_intermediate_size": 16}
REST: tuple[tuple[str, dict[str, Any]], ...] = (
    ("beam", {"mlp_layer_types": ["dense", "sparse"]}),
    ("bloom", {"apply_residual_connection_post_layernorm": True}),
    ("codegen", {"rotary_dim": 4}),
    ("cohere2_moe", {"rms_norm_eps": 1e-5}),
    ("deepseek_v2", {"q_lora_rank": None}),
    ("deepseek_v3", {"q_lora_rank": None, "first_k_dense_replace": 0}),
    ("ernie4_5_moe", {"use_bias": True}),
    ("exaone4", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    ("falcon", {"parallel_attn": False, "bias": True}),
    ("falcon_h1", {"mamba_rms_norm": True}),
    ("flint", {"mlp_only_layers": []}),
    ("glm4_moe", {"use_qk_norm": True}),
    ("gpt_bigcode", {"multi_query": False}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("granitemoehybrid", {"position_embedding_type": "rope"}),
    ("hunyuan_v1_dense", {"use_qk_norm": True}),
    ("inkling_text", {"mlp_layer_types": ["dense", "sparse"]}),
    ("jamba", {"num_experts": 1}),
    ("lfm2", {"conv_bias": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("mellum", {"mlp_layer_types": ["dense", "sparse"]}),
    ("nemotron_h", {"mlp_bias": True}),
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    ("persimmon", {"qk_layernorm": False}),
    ("phi", {"qk_layernorm": True}),
    ("phi3", {"partial_rotary_factor": 0.5}),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 4}),
    ("qwen2_moe", {"mlp_only_layers": [0]}),
    ("qwen3_moe", {"mlp_only_layers": [0]}),
    ("smollm3", {"no_rope_layers": [0, 1]}),
    ("stablelm", {"qk_layernorm": True}),
    ("starcoder2", {"use_bias": False}),
    ("zamba2", {"use_mem_rope": True}),
)
CASES = [*FEW.items(), *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]
# Classes in a family's file that no model of ours has: of other heads, other attention libraries, images
OTHERS = ("PreTrainedModel", "For", "Vision", "Audio", "Image", "Vlm", "Patch", "Projector", "Multi")
UNUSED = {
    *("AriaCrossAttention", "FalconFlashAttention2", "GPT2SequenceSummary", "GPTNeoFlashAttention2"),
    *("GPTJFlashAttention2", "Gemma4ClippableLinear", "Llama4UnfoldConvolution", "OpenAIGPTSequenceSummary"),
    *("FlexOlmoMLP", "OlmoeMLP"),  # without a use in their files
    "DogeCDMoE",  # refused
}


def built(kind: str, change: dict[str, Any]) -> Any:
    module = HFModelFactory(Source(config={**tiny_config(kind), **change}))()
    spread_out(module)
    return module


@pytest.mark.parametrize(("kind", "change"), CASES, ids=str)
def test_other_layers_are_transformers_own(kind: str, change: dict[str, Any]) -> None:
    module = built(kind, change)
    assert losses_otherwise(module.train()) == ""
    assert exported_otherwise({**tiny_config(kind), **change}, module) == ""
    assert answers_otherwise(module.hf) == ""


@pytest.mark.slow
def test_every_layer_of_a_family_is_tried() -> None:
    """A small model without a family's other layers hid an indexer, a mixture and a clipped attention."""
    changes: dict[str, list[dict[str, Any]]] = {kind: [change] for kind, change in (*FEW.items(), *REST)}
    untried: dict[str, list[str]] = {}
    for kind in sorted(k for k, row in families().items() if row.trained):
        models = [built(kind, change).hf for change in ({}, *changes.get(kind, ()))]
        made = {c for hf in models for m in hf.modules() for c in type(m).__mro__}
        own = next(c for c in type(models[0]).__mro__ if c.__module__.startswith("transformers.models"))
        file = importlib.import_module(own.__module__)
        layers = (
            c
            for c in vars(file).values()
            if inspect.isclass(c) and issubclass(c, nn.Module) and c.__module__ == file.__name__
        )
        names = [c.__name__ for c in layers if c not in made and c.__name__ not in UNUSED]
        left = [n for n in names if not n.endswith("Model") and not any(word in n for word in OTHERS)]
        if left:
            untried[kind] = left
    assert not untried


def test_a_fused_form_that_large_values_tell_apart_is_not_taken() -> None:
    """OLMo clips what its projections give; what those of fresh weights give lies within."""
    for clip in (None, 0.5):
        module = built("olmo", {"clip_qkv": clip})
        fused = [m for m in module.hf.modules() if "FusedAttention" in {c.__name__ for c in type(m).__mro__}]
        assert bool(fused) == (clip is None)
