"""Families that train under ``torch.autocast``: fp32 weights stay, and there are no low-precision copies."""

from __future__ import annotations

from paceline.plan.model.shape import ModelShape

#: Families with a module that has no low-precision form (asserted against all that Transformers builds;
#: ``models.precision.LowPrecisionCopies`` decides in a run).
AUTOCAST = frozenset(
    {
        *("afmoe", "apertus", "bamba", "beam", "deepseek_v4", "diffllama", "doge", "ernie4_5_moe"),
        *("falcon_h1", "falcon_mamba", "flint", "gpt_neox_japanese", "granitemoehybrid", "hrm_text"),
        *("hy_v4", "inkling2_text", "inkling_text", "jamba", "jetmoe", "kimi_linear", "laguna", "lfm3"),
        *("mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid", "openai-gpt", "qwen3_5_moe_text"),
        *("qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv", "zaya"),
    }
)


def under_autocast(shape: ModelShape | None) -> bool:
    """Whether a model of ``shape`` has no low-precision copies."""
    return shape is not None and shape.model_type in AUTOCAST
