"""What each family's configuration class of Transformers 5.23 takes where a ``config.json`` leaves a size out."""

from __future__ import annotations

from typing import Any

# Transformers' names for the same size in its families.
SIZE_NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "max_positions": ("max_position_embeddings", "n_positions"),
    "head_dim": ("head_dim",),
}

# fmt: off
FAMILY_SIZES: dict[str, dict[str, Any]] = {
    "llama": {"vocab": 32000, "hidden_size": 4096, "intermediate": 11008, "layers": 32, "heads": 32, "max_positions": 2048},
    "mistral": {"vocab": 32000, "hidden_size": 4096, "intermediate": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "max_positions": 131072},
    "mixtral": {"vocab": 32000, "hidden_size": 4096, "intermediate": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "max_positions": 131072},
    "qwen2": {"vocab": 151936, "hidden_size": 4096, "intermediate": 22016, "layers": 32, "heads": 32, "kv_heads": 32, "max_positions": 32768},
    "qwen3": {"vocab": 151936, "hidden_size": 4096, "intermediate": 22016, "layers": 32, "heads": 32, "kv_heads": 32, "head_dim": 128, "max_positions": 32768},
    "gemma": {"vocab": 256000, "hidden_size": 3072, "intermediate": 24576, "layers": 28, "heads": 16, "kv_heads": 16, "head_dim": 256, "max_positions": 8192, "tied": True},
    "gemma2": {"vocab": 256000, "hidden_size": 2304, "intermediate": 9216, "layers": 26, "heads": 8, "kv_heads": 4, "head_dim": 256, "max_positions": 8192, "tied": True},
    "gemma3_text": {"vocab": 262208, "hidden_size": 2304, "intermediate": 9216, "layers": 26, "heads": 8, "kv_heads": 4, "head_dim": 256, "max_positions": 131072, "tied": True},
    "phi": {"vocab": 51200, "hidden_size": 2048, "intermediate": 8192, "layers": 24, "heads": 32, "max_positions": 2048},
    "phi3": {"vocab": 32064, "hidden_size": 3072, "intermediate": 8192, "layers": 32, "heads": 32, "max_positions": 4096},
    "gpt2": {"vocab": 50257, "hidden_size": 768, "layers": 12, "heads": 12, "max_positions": 1024, "tied": True},
    "gpt_neox": {"vocab": 50432, "hidden_size": 6144, "intermediate": 24576, "layers": 44, "heads": 64, "max_positions": 2048},
    "qwen3_moe": {"vocab": 151936, "hidden_size": 2048, "intermediate": 768, "layers": 24, "heads": 32, "kv_heads": 4, "max_positions": 32768},
}
#: Of a mixture of experts: the key of their number and its default, the key of how many a token visits and its default, the key of their inner width.
EXPERTS: dict[str, tuple[str, int, str, int, str]] = {
    "mixtral": ("num_local_experts", 8, "num_experts_per_tok", 2, "intermediate_size"),
    "qwen3_moe": ("num_experts", 128, "num_experts_per_tok", 8, "moe_intermediate_size"),
}
# fmt: on
