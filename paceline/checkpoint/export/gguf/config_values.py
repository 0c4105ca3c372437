"""Config values that GGUF stores in another form."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.json_types import Json, JsonObject


def at(config: Mapping[str, Json], path: str) -> Json:
    """Return the value at a dotted path of a config; None where there is none."""
    value: Json = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def whole(config: Mapping[str, Json], path: str) -> int:
    """Return a whole number of a config."""
    return int(str(at(config, path)))


def head_width(config: JsonObject) -> int:
    """The width of a head."""
    width = at(config, "head_dim")
    return int(str(width or whole(config, "hidden_size") // whole(config, "num_attention_heads")))


def rotated_width(config: JsonObject) -> int:
    """The number of a head's dimensions that are rotated."""
    part = at(config, "rope_parameters.partial_rotary_factor")
    if part is None:
        part = at(config, "partial_rotary_factor")
    return int(head_width(config) * float(str(1 if part is None else part)))


def num_experts(config: JsonObject) -> int:
    """How many experts a layer has, under either of its names."""
    return whole(config, "num_experts" if "num_experts" in config else "num_local_experts")


def mistral_as_llama(config: JsonObject) -> JsonObject:
    """Llama is Mistral without a window of attention."""
    kept = {key: value for key, value in config.items() if key != "sliding_window" or value is not None}
    return {**kept, "model_type": "llama"}


def lfm2_width(config: JsonObject) -> int:
    """The feed-forward width that the model computes with."""
    width = whole(config, "intermediate_size")
    if not config.get("block_auto_adjust_ff_dim"):
        return width
    width = int(float(str(config["block_ffn_dim_multiplier"])) * int(2 * width / 3))
    unit = whole(config, "block_multiple_of")
    return unit * -(-width // unit)


def lfm2_as_read(config: JsonObject) -> JsonObject:
    """The width as computed, with neutral multiplier and unit."""
    assumed = {"block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256}
    return {**config, "block_auto_adjust_ff_dim": False, "intermediate_size": lfm2_width(config), **assumed}


def lfm2_key_heads(config: JsonObject) -> list[int]:
    """Key heads by layer, none in a convolution."""
    kinds, heads = config["layer_types"], whole(config, "num_key_value_heads")
    return [heads if kind == "full_attention" else 0 for kind in kinds] if isinstance(kinds, list) else []


def rotary_sections(config: JsonObject) -> list[int]:
    """The parts of a rotated head by axis of a picture, padded to four."""
    parts = at(config, "rope_parameters.mrope_section")
    listed = [int(str(part)) for part in parts] if isinstance(parts, list) else []
    return [*listed, 0, 0, 0, 0][:4]


def linear_width(config: JsonObject) -> int:
    return whole(config, "linear_num_value_heads") * whole(config, "linear_value_head_dim")


def full_attention_interval(config: JsonObject) -> int:
    """The number of layers from one with full attention to the next."""
    kinds = config["layer_types"]
    full = (
        [index for index, kind in enumerate(kinds) if kind == "full_attention"]
        if isinstance(kinds, list)
        else []
    )
    return full[0] + 1 if full else whole(config, "num_hidden_layers") + 1
