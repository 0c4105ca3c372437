"""The families whose experts have a balance loss in Transformers, and the coefficient a config requests."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.json_types import Json

_KEYS = ("router_aux_loss_coef", "aux_loss_coef")  # the latter is JetMoE's

# The families whose class in Transformers computes it -> the coefficient's default (tests compare both).
# Doge's does, too; its mixtures are refused (``supported.py``).
DEFAULTS: Mapping[str, float] = {
    **dict.fromkeys(
        (
            "deepseek_v4",
            "ernie4_5_moe",
            "gpt_oss",
            "granitemoe",
            "granitemoe_swa",
            "granitemoehybrid",
            "granitemoeshared",
            "jamba",
            "laguna",
            "mellum",
            "minimax",
            "minimax_m2",
            "minimax_m3_vl_text",
            "mixtral",
            "phimoe",
            "qwen2_moe",
            "qwen3_5_moe_text",
            "qwen3_moe",
            "qwen3_next",
            "qwen4_exp_text",
        ),
        0.001,
    ),
    "flex_olmo": 0.01,
    "flint": 0.0005,
    "jetmoe": 0.01,
    "olmoe": 0.01,
}


def has_router_loss(kind: str) -> bool:
    """Whether Transformers computes a balance loss for the family."""
    return kind in DEFAULTS


def config_coefficient(config: Mapping[str, Json]) -> float:
    """Return the coefficient that a ``config.json`` asks for: 0 unless ``output_router_logits`` is true."""
    kind = str(config.get("model_type"))
    if config.get("output_router_logits") is not True or kind not in DEFAULTS:
        return 0.0
    given = (config.get(key) for key in _KEYS)
    numbers = [value for value in given if isinstance(value, (int, float))]
    return float(numbers[0]) if numbers else DEFAULTS[kind]
