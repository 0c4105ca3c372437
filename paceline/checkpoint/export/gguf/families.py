"""The families that can be written as GGUF: their config fields, and changed tensors.

A family is here if Transformers reads a file of llama.cpp's layout back as the same model. The names of
tensors come from the package gguf. Where the file leaves out a value of the config, Transformers assumes one;
the export compares the two after writing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from paceline.checkpoint.export.gguf.config_values import (
    at,
    full_attention_interval,
    head_width,
    lfm2_as_read,
    lfm2_key_heads,
    lfm2_width,
    linear_width,
    mistral_as_llama,
    num_experts,
    rotary_sections,
    rotated_width,
    whole,
)
from paceline.checkpoint.export.gguf.tensors import (
    TensorChange,
    inputs_tiled,
    minus_exponential,
    plus_one,
    queries_keys_values,
    rotary_pairs,
    tiled,
    transposed,
    values_tiled,
    without_ones,
)
from paceline.core.json_types import Json, JsonObject

#: Where a value of the file comes from: a dotted path of the config, or a function of it.
Source = str | Callable[[JsonObject], Json]


_FLOATS = ("epsilon", "freq_base", "softcapping")


class ConfigWriter(Protocol):
    """The part of ``gguf.GGUFWriter`` that is used here."""

    def add_bool(self, key: str, val: bool) -> None: ...
    def add_uint32(self, key: str, val: int) -> None: ...
    def add_float32(self, key: str, val: float) -> None: ...
    def add_array(self, key: str, val: list[int]) -> None: ...


def _same(config: JsonObject) -> JsonObject:
    return config


@dataclass(frozen=True)
class GGUFFamily:
    """``arch`` is GGUF's name; ``keys`` maps keys of the file (after the name) to values of the config.

    ``names`` renames tensors before they are looked up. ``as_read`` is the config as Transformers reads it
    back, if the same model can be described in two ways.
    """

    arch: str
    keys: Mapping[str, Source]
    changes: tuple[TensorChange, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    as_read: Callable[[JsonObject], JsonObject] = field(default=_same)


_SIZES: Mapping[str, Source] = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "vocab_size": "vocab_size",
}
_ROTARY: Mapping[str, Source] = {
    "rope.dimension_count": rotated_width,
    "rope.freq_base": "rope_parameters.rope_theta",
}
_HEADS: Mapping[str, Source] = {"attention.key_length": head_width, "attention.value_length": head_width}
_RMS: Mapping[str, Source] = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
_LLAMA = {**_SIZES, **_ROTARY, **_HEADS, **_RMS}
_EXPERTS: Mapping[str, Source] = {
    "expert_count": num_experts,
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_SHARED: Mapping[str, Source] = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
_PAIRS = (
    TensorChange(r"attn_q\.(weight|bias)", partial(rotary_pairs, num_heads="num_attention_heads")),
    TensorChange(r"attn_k\.(weight|bias)", partial(rotary_pairs, num_heads="num_key_value_heads")),
)
_NORMS = TensorChange(r"norm\.weight", plus_one, exact=False)
_SHARED_GATE = TensorChange(r"ffn_gate_inp_shexp\.weight", without_ones)
_GEMMA: Mapping[str, Source] = {
    **_LLAMA,
    "attention.sliding_window": "sliding_window",
}


_QWEN35: Mapping[str, Source] = {
    **_LLAMA,
    "full_attention_interval": full_attention_interval,
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": linear_width,
    "rope.dimension_sections": rotary_sections,
}
_QWEN35_CHANGES = (
    TensorChange(r"(?<!ssm_)norm\.weight", plus_one, exact=False),
    TensorChange(r"ssm_a", minus_exponential, exact=False),
    TensorChange(r"ssm_(a|dt\.bias|alpha\.weight|beta\.weight)", partial(tiled, width=1)),  # one row a head
    TensorChange(r"(attn_gate|attn_qkv|ssm_conv1d)\.weight", values_tiled),
    TensorChange(r"ssm_conv1d\.weight", without_ones),
    TensorChange(r"ssm_out\.weight", inputs_tiled),
    _SHARED_GATE,
)
_DT_BIAS = ((r"\.dt_bias$", ".dt_proj.bias"),)


def _without(keys: Mapping[str, Source], *names: str) -> dict[str, Source]:
    return {key: source for key, source in keys.items() if key not in names}


FAMILIES: Mapping[str, GGUFFamily] = {
    "llama": GGUFFamily("llama", _LLAMA, _PAIRS),
    "mistral": GGUFFamily("llama", _LLAMA, _PAIRS, as_read=mistral_as_llama),
    "qwen2": GGUFFamily("qwen2", _LLAMA),
    "qwen2_moe": GGUFFamily("qwen2moe", {**_LLAMA, **_EXPERTS, **_SHARED}, (_SHARED_GATE,)),
    "qwen3": GGUFFamily("qwen3", _LLAMA),
    "qwen3_moe": GGUFFamily("qwen3moe", {**_LLAMA, **_EXPERTS}),
    "qwen3_5_text": GGUFFamily("qwen35", _QWEN35, _QWEN35_CHANGES, _DT_BIAS),
    "qwen3_5_moe_text": GGUFFamily(
        "qwen35moe",
        {**_without(_QWEN35, "feed_forward_length"), **_EXPERTS, **_SHARED},
        _QWEN35_CHANGES,
        _DT_BIAS,
    ),
    "gemma2": GGUFFamily(
        "gemma2",
        {
            **_GEMMA,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        (_NORMS,),
    ),
    "gemma3_text": GGUFFamily(
        "gemma3", {**_GEMMA, "rope.freq_base": "rope_parameters.full_attention.rope_theta"}, (_NORMS,)
    ),
    "phi3": GGUFFamily(
        "phi3",
        {
            **_SIZES,
            **_ROTARY,
            **_RMS,
            "rope.scaling.original_context_length": "original_max_position_embeddings",
            # llama.cpp tells by a window of 0 that there is none.
            "attention.sliding_window": lambda config: config.get("sliding_window") or 0,
        },
    ),
    "stablelm": GGUFFamily(
        "stablelm",
        {
            **_SIZES,
            **_ROTARY,
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
    ),
    "starcoder2": GGUFFamily(
        "starcoder2", {**_SIZES, **_ROTARY, "attention.layer_norm_epsilon": "norm_epsilon"}
    ),
    "falcon": GGUFFamily(
        "falcon",
        {
            **_without(_SIZES, "feed_forward_length", "attention.head_count_kv"),
            "feed_forward_length": "ffn_hidden_size",
            "attention.head_count_kv": lambda config: 1,
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "rope.freq_base": "rope_parameters.rope_theta",
        },
    ),
    "bloom": GGUFFamily(
        "bloom",
        {
            "context_length": lambda config: 2048,
            "embedding_length": "hidden_size",
            "feed_forward_length": lambda config: 4 * whole(config, "hidden_size"),
            "block_count": "n_layer",
            "attention.head_count": "n_head",
            "attention.head_count_kv": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "vocab_size": "vocab_size",
        },
        (TensorChange(r"attn_qkv\.(weight|bias)", queries_keys_values),),
    ),
    "gpt2": GGUFFamily(
        "gpt2",
        {
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "feed_forward_length": lambda config: 4 * whole(config, "n_embd"),
            "block_count": "n_layer",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "vocab_size": "vocab_size",
        },
        (TensorChange(r"(attn_qkv|attn_output|ffn_up|ffn_down)\.weight", transposed),),
    ),
    "nemotron": GGUFFamily(
        "nemotron", {**_SIZES, **_ROTARY, "attention.layer_norm_epsilon": "norm_eps"}, (_NORMS,)
    ),
    "mamba": GGUFFamily(
        "mamba",
        {
            "context_length": lambda config: 2**20,
            "embedding_length": "hidden_size",
            "feed_forward_length": lambda config: 0,
            "attention.head_count": lambda config: 0,
            "block_count": "num_hidden_layers",
            "ssm.conv_kernel": "conv_kernel",
            "ssm.inner_size": "intermediate_size",
            "ssm.state_size": "state_size",
            "ssm.time_step_rank": "time_step_rank",
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "ssm.dt_b_c_rms": lambda config: False,
            "vocab_size": "vocab_size",
        },
        (
            TensorChange(r"ssm_conv1d\.weight", without_ones),
            TensorChange(r"ssm_a", minus_exponential, exact=False),
        ),
    ),
    "lfm2": GGUFFamily(
        "lfm2",
        {
            **_without(_LLAMA, "feed_forward_length", "attention.head_count_kv", *_RMS),
            "feed_forward_length": lfm2_width,
            "attention.head_count_kv": lfm2_key_heads,
            "attention.layer_norm_rms_epsilon": "norm_eps",
            "shortconv.l_cache": "conv_L_cache",
        },
        (TensorChange(r"shortconv\.conv\.weight", without_ones),),
        as_read=lfm2_as_read,
    ),
    "minimax_m2": GGUFFamily(
        "minimax-m2",
        {
            **_LLAMA,
            "expert_count": num_experts,
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
            "expert_gating_func": lambda config: 2,
        },
        names=((r"e_score_correction_bias$", "e_score_correction.bias"),),
    ),
}


def add_config(writer: ConfigWriter, family: GGUFFamily, config: JsonObject) -> None:
    """Add the architecture's fields; skip those that the config lacks."""
    for key, source in family.keys.items():
        value = at(config, source) if isinstance(source, str) else source(config)
        name = f"{family.arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, float) or (isinstance(value, int) and key.endswith(_FLOATS)):
            writer.add_float32(name, float(value))
        elif isinstance(value, int):
            writer.add_uint32(name, value)
