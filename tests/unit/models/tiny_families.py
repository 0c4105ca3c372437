"""A tiny config of every causal language model that Transformers registers, made from its own config
class.
"""

from __future__ import annotations

from typing import Any

VOCAB = 97
POSITIONS = 64

#: Sizes by name, wherever a config class has the name. Heads of 8, two of a kind of everything that is
#: counted.
SIZES: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size", "word_embed_proj_dim"), 32
    ),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "encoder_layers",
            "decoder_layers",
            "num_decoder_layers",
            "num_encoder_layers",
        ),
        2,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "encoder_attention_heads",
            "decoder_attention_heads",
            "num_decoder_attention_heads",
            "num_encoder_attention_heads",
            "swa_num_attention_heads",
            "linear_num_value_heads",
            "mamba_n_heads",
            "n_mamba_heads",
            "kda_num_heads",
            "swa_attention_heads",
        ),
        4,
    ),
    **dict.fromkeys(
        (
            "num_key_value_heads",
            "swa_num_key_value_heads",
            "linear_num_key_heads",
            "num_global_key_value_heads",
            "swa_kv_heads",
            "kv_n_heads",
        ),
        2,
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "n_inner",
            "ffn_dim",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "ffn_hidden_size",
            "dense_intermediate_size",
            "shared_intermediate_size",
            "intermediate_size_mlp",
        ),
        48,
    ),
    **dict.fromkeys(
        (
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "expert_ffn_hidden_size",
            "ffn_hidden_dim",
        ),
        16,
    ),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k"), 2
    ),
    **dict.fromkeys(
        (
            "n_shared_experts",
            "num_shared_experts",
            "moe_num_shared_experts",
            "n_group",
            "topk_group",
            "first_k_dense_replace",
            "moe_layer_start_index",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "head_dim",
            "kv_lora_rank",
            "qk_rope_head_dim",
            "qk_nope_head_dim",
            "v_head_dim",
            "rotary_dim",
            "swa_head_dim",
            "global_head_dim",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "kda_head_dim",
            "mamba_d_head",
            "mamba_head_dim",
            "index_head_dim",
            "attention_hidden_size",
            "d_kv",
            "d_head",
        ),
        8,
    ),
    **dict.fromkeys(("q_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("sliding_window", "window_size", "index_topk"), 4),
    **dict.fromkeys(
        (
            "max_position_embeddings",
            "n_positions",
            "max_seq_len",
            "max_sequence_length",
            "n_ctx",
            "context_length",
        ),
        POSITIONS,
    ),
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
    "mamba_d_state": 8,
    "state_size": 8,
    "mamba_n_groups": 1,
    "n_groups": 1,
}

#: What a family needs beside, because sizes depend on each other in a way of its own.
_MLA = (
    "axk1",
    "axk2",
    "bailing_hybrid",
    "deepseek_v3",
    "deepseek_v32",
    "dots3_note_text",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "kimi_linear",
    "minicpm3",
    "youtu",
)
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
_HEAD = {"head_dim": 8}
# Of keys that score zero alike, any is selected: those of a padding token's row of zeros, and with few heads
_SELECTS = (
    "axk2",
    "deepseek_v32",
    "deepseek_v4",
    "dots3_note_text",
    "glm_moe_dsa",
    "hy_v4",
    "minimax_m3_vl_text",
)
BESIDE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_MLA, {"num_key_value_heads": 4}),
    "minicpm3": {"num_key_value_heads": 4, "dim_model_base": 16},  # else logits are eight times as large
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
    },
    "cpmant": {"prompt_types": 2, "prompt_length": 4, "segment_types": 4},
    "kimi_linear": {"num_key_value_heads": 4, "linear_head_dim": 8, "linear_num_heads": 4},
    "dots3_note_text": {
        "num_key_value_heads": 4,
        "shared_experts_intermediate_size": 16,
        "per_layer_config": {
            "1": {
                **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 4),
                **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "head_dim"), 16),
                **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "qk_rope_head_dim"), 8),
            }
        },
    },
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "num_key_value_heads": 1,
        "o_groups": 2,
    },
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2, "topk_group": 1, "n_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": 48,
        "activation_sparsity_pattern": [0.0] * 4,
        "laurel_rank": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    },
    "glm4_moe": {"partial_rotary_factor": 1.0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["linear_attention", "full_attention"]},
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention", "full_attention"],
        "num_hidden_layers": 3,
        "num_dense_layers": 1,
    },
    "llama4_text": {"attention_chunk_size": 4, "floor_scale": 4, "no_rope_layers": [1, 0], "moe_layers": [1]},
    "longcat_flash": {"num_key_value_heads": 4, "zero_expert_num": 1},
    "mamba2": {"num_heads": 8},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "index_n_heads": 2,
        "index_block_size": 2,
        "index_topk_blocks": 2,  # heads: no more than keys have
    },
    "ministral": _HEAD,
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "num_key_value_heads": 4,
        "n_mamba_heads": 2,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "num_key_value_heads": 4,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "hybrid_layer_ids": [1],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "kv_channels": 8,
        "num_query_groups": 4,
        "adapter_rank": 4,
    },
}


def tiny_config(kind: str) -> dict[str, Any]:
    """``model.config`` of a tiny model of the type ``kind``."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    whole = CONFIG_MAPPING[kind]().to_dict()
    made = {
        name: SIZES[name]
        for name, value in whole.items()
        if name in SIZES and (value is not None or name.endswith("_token_id"))
    }
    if kind in _SELECTS:
        made["pad_token_id"] = None
        made |= {"index_n_heads": 16} if "index_n_heads" in whole else {}
    made |= {
        name: 0.0
        for name, value in whole.items()
        if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, (int, float))
    }
    kinds = whole.get("layer_types")
    if isinstance(kinds, list) and kinds:
        few = list(dict.fromkeys(kinds))
        made["layer_types"] = few if len(few) > 1 else few * 2
        made |= {
            name: len(made["layer_types"])
            for name in made
            if name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        }
    made |= BESIDE.get(kind, {})
    AutoConfig.for_model(kind, **made)
    return {"model_type": kind, **made}
