"""Sizes that each family's config class (Transformers 5.23) uses if ``config.json`` leaves them out."""

from __future__ import annotations

from paceline.plan.model.supported import Family, families

# Names of each size across Transformers' families.
SIZE_NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "head_dim": ("head_dim",),
}

# fmt: off
FAMILY_SIZES: dict[str, dict[str, int]] = {
    "llama": {"vocab": 32000, "hidden_size": 4096, "intermediate": 11008, "layers": 32, "heads": 32,
              "max_positions": 2048},
    "mistral": {"vocab": 32000, "hidden_size": 4096, "intermediate": 14336, "layers": 32, "heads": 32,
                "kv_heads": 8, "max_positions": 131072},
    "mixtral": {"vocab": 32000, "hidden_size": 4096, "intermediate": 14336, "layers": 32, "heads": 32,
                "kv_heads": 8, "max_positions": 131072},
    "qwen2": {"vocab": 151936, "hidden_size": 4096, "intermediate": 22016, "layers": 32, "heads": 32,
              "kv_heads": 32, "max_positions": 32768},
    "qwen3": {"vocab": 151936, "hidden_size": 4096, "intermediate": 22016, "layers": 32, "heads": 32,
              "kv_heads": 32, "head_dim": 128, "max_positions": 32768},
    "gemma": {"vocab": 256000, "hidden_size": 3072, "intermediate": 24576, "layers": 28, "heads": 16,
              "kv_heads": 16, "head_dim": 256, "max_positions": 8192, "tied": True},
    "gemma2": {"vocab": 256000, "hidden_size": 2304, "intermediate": 9216, "layers": 26, "heads": 8,
               "kv_heads": 4, "head_dim": 256, "max_positions": 8192, "tied": True},
    "gemma3_text": {"vocab": 262208, "hidden_size": 2304, "intermediate": 9216, "layers": 26, "heads": 8,
                    "kv_heads": 4, "head_dim": 256, "max_positions": 131072, "tied": True},
    "phi": {"vocab": 51200, "hidden_size": 2048, "intermediate": 8192, "layers": 24, "heads": 32,
            "max_positions": 2048},
    "phi3": {"vocab": 32064, "hidden_size": 3072, "intermediate": 8192, "layers": 32, "heads": 32,
             "max_positions": 4096},
    "gpt2": {"vocab": 50257, "hidden_size": 768, "layers": 12, "heads": 12, "max_positions": 1024,
             "tied": True},
    "gpt_neox": {"vocab": 50432, "hidden_size": 6144, "intermediate": 24576, "layers": 44, "heads": 64,
                 "max_positions": 2048},
    "qwen3_moe": {"vocab": 151936, "hidden_size": 2048, "intermediate": 6144, "layers": 24, "heads": 32,
                  "kv_heads": 4, "max_positions": 32768},
}
# fmt: on
#: Families without a tensor-parallel plan of Transformers that runs: Gemma 3n's leaves some products whole.
NO_TENSOR_PLAN = frozenset({"gpt2", "gemma3n_text"})
#: Families whose tensor-parallel plan DeepSpeed does not follow, since it shards in other ways than by column
#: or row (``deepspeed.module_inject.tp_plan_converter``; a test compares).
NO_AUTOTP = frozenset(
    {
        *("afmoe", "aria_text", "axk1", "axk2", "beam", "cohere2_moe", "deepseek_v2", "deepseek_v3"),
        *(
            "deepseek_v32",
            "deepseek_v4",
            "dots1",
            "dots3_note_text",
            "ernie4_5_moe",
            "exaone_moe",
            "flex_olmo",
        ),
        *("flint", "gemma4_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "granite_swa"),
        *("granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "hunyuan_v1_moe", "hy_v3"),
        *("hy_v4", "inkling2_text", "inkling_text", "jamba", "kimi_linear", "kolibri1", "laguna", "lfm2_moe"),
        *("llama4_text", "longcat_flash", "mellum", "mimo_v2_flash", "minicpm3", "minimax", "minimax_m2"),
        *("minimax_m3_vl_text", "mixtral", "nemotron_h", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "phi3"),
        *("phimoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next", "solar_open"),
    }
)
#: Families whose layers cannot run stage by stage (the model adds position embeddings outside of them).
NO_STAGES = frozenset({"gpt2"})

#: Families that visit in turn the experts that a rank's tokens chose: ranks gather weights in another order.
EXPERTS_IN_TURN = frozenset({"longcat_flash"})

#: Families with ``Conv1D`` in place of ``nn.Linear``, which bitsandbytes does not quantize.
NO_LINEARS = frozenset({"gpt2"})

#: No model has larger sizes: such a config is damaged or malicious.
LARGEST_SIZE = 2**24
LARGEST = {"layers": 10_000, "vocab": 2**26, "max_positions": 2**40}


def family_sizes(family: str) -> dict[str, int]:
    """Return the default sizes of a family's config class.

    Empty for a family that Transformers does not have.
    """
    return dict(FAMILY_SIZES.get(family) or families().get(family, Family()).sizes)
