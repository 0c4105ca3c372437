"""Tiny models with all their parts: a language model with a vision tower."""

from __future__ import annotations

from typing import Any

from tiny_families import tiny_config

from paceline.plan.model.family import composites

_TOWER = {
    **dict.fromkeys(("hidden_size", "embed_dim", "vision_output_dim", "num_position_embeddings"), 16),
    **dict.fromkeys(("projector_input_dim", "projector_output_dim", "output_proj_dims"), 16),
    **dict.fromkeys(("num_hidden_layers", "depth", "num_global_layers"), 1),
    **dict.fromkeys(("num_heads", "num_attention_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("deepstack_visual_indexes", "fullatt_block_indexes"), [0]),
    "intermediate_size": 24,
    "image_size": 28,
    "patch_size": 14,
    "out_hidden_size": 32,
}
_TOKENS = ("image_token_id", "image_token_index", "video_token_id", "vision_start_token_id")


def whole_config(kind: str) -> Any:
    """The config of a tiny model of the type ``kind`` with all parts."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    plain = CONFIG_MAPPING[kind]()
    text_kind = plain.get_text_config().model_type
    text = {**tiny_config(composites()[kind].text or text_kind), "model_type": text_kind}
    if composites()[kind].text:
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
        if kind.startswith("glm4"):  # as their folders say
            rope |= {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
        text["rope_parameters"] = rope
    parts: dict[str, Any] = {"text_config": text}
    for name in set(CONFIG_MAPPING[kind].sub_configs) - {"text_config"}:
        part = getattr(plain, name)
        if part is None and name == "vision_config":  # Gemma 4's class has a tower only where one is told
            part = CONFIG_MAPPING[kind].sub_configs[name]()
        if part is not None:
            small = {k: v for k, v in _TOWER.items() if k in type(part)().to_dict()}
            parts[name] = {"model_type": part.model_type, **small}
    tokens = {*_TOKENS, "vision_end_token_id", "boi_token_index", "eoi_token_index"} & set(plain.to_dict())
    return CONFIG_MAPPING[kind](**parts, **dict.fromkeys(tokens, 90))
