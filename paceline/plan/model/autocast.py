"""Families that train under ``torch.autocast``: fp32 weights stay, and there are no low-precision copies."""

from __future__ import annotations

from paceline.plan.model.shape import ModelShape

#: Families with parameters in modules of classes of their own, RMSNorm apart (asserted against all that
#: Transformers builds; ``models.precision.LowPrecisionCopies`` decides in a run).
AUTOCAST = frozenset(
    {
        *("afmoe", "apertus", "aria_text", "axk1", "bamba", "beam", "cohere", "cohere2", "cohere2_moe"),
        *("deepseek_v2", "diffllama", "doge", "ernie4_5_moe", "exaone_moe", "falcon", "falcon_h1"),
        *("falcon_mamba", "flex_olmo", "flint", "glm4_moe", "glm4_moe_lite", "gpt_neox_japanese"),
        *("gpt_oss", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid"),
        *("granitemoeshared", "hrm_text", "hy_v3", "inkling2_text", "inkling_text", "jamba", "jetmoe"),
        *("kimi_linear", "kolibri1", "laguna", "lfm3", "llama4_text", "longcat_flash", "mamba", "mamba2"),
        *("mellum", "mimo_v2_flash", "minimax", "minimax_m2", "minimax_m3_vl_text", "mixtral", "nemotron_h"),
        *("olmo_hybrid", "olmoe", "openai-gpt", "phimoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_5_text"),
        *("qwen3_moe", "qwen3_next", "recurrent_gemma", "rwkv", "solar_open", "xlstm", "zaya"),
    }
)


def under_autocast(shape: ModelShape | None) -> bool:
    """Whether a model of ``shape`` has no low-precision copies; experts' weights are not of ``nn.Linear``."""
    return shape is not None and (shape.model_type in AUTOCAST or shape.experts > 0)
