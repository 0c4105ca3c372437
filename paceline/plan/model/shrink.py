"""A small model of the same architecture, which ``paceline verify`` trains in place of the real one."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.json_types import Json, JsonObject
from paceline.plan.model.family import SIZE_NAMES, family_of, text_part

HEAD_DIM = 16
EXPERTS = 4
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_A_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
_WINDOWS = ("sliding_window", "attention_chunk_size")


def shrunk(config: Mapping[str, Json], *, layers: int = 2, kv_heads: int = 2) -> JsonObject:
    """Return the config of a small model: same family, norms, biases, tying, head grouping, layer types.

    ``layers``: decoder layers of the result (at most the model's own). ``kv_heads``: KV heads if the model
    groups its heads, else heads; tensor parallelism must divide them. Heads have 16 dimensions, windows 32
    positions, mixtures 4 experts; every dropout is 0. The vocabulary is unchanged.
    """
    part = text_part(config)
    small = {k: v for k, v in part.items() if not _is_dropout(k)}
    small |= {k: 0.0 for k in part if _is_dropout(k)}
    # The model's own sizes, by config or family.
    have: dict[str, int | None] = {
        **family_of(small.get("model_type")).sizes,
        **{name: _size(small[_key(small, name)]) for name in SIZE_NAMES if _key(small, name) in small},
    }
    # Keep the grouping of heads and the ratio of MLP width to hidden size.
    heads = have.get("heads") or kv_heads
    grouped = 0 < (have.get("kv_heads") or 0) < heads
    new_heads = 2 * kv_heads if grouped else max(kv_heads, 4 if kv_heads in (1, 2, 4) else kv_heads)
    hidden = new_heads * HEAD_DIM
    old_hidden = have.get("hidden_size") or hidden
    sizes = {
        "hidden_size": hidden,
        "layers": min(layers, have.get("layers") or layers),
        "heads": new_heads,
        "kv_heads": kv_heads if grouped else (new_heads if "kv_heads" in have else None),
        "intermediate": max(
            1,
            round(
                hidden * min((have.get("intermediate") or 4 * old_hidden) / old_hidden, 4) / (4 * kv_heads)
            ),
        )
        * 4
        * kv_heads,
        "head_dim": HEAD_DIM if "head_dim" in have else None,
    }
    for name, size in sizes.items():
        if size is not None and (
            name != "intermediate" or _key(small, name) in small or "intermediate" in have
        ):
            small[_key(small, name)] = size
    # Per-layer lists, experts and attention windows.
    _cut_lists(small, sizes["layers"] or layers)
    _shrink_experts(small, hidden)
    for name in _WINDOWS:
        if window := _size(small.get(name)):
            small[name] = min(window, 32)
    return small


def _size(value: Json) -> int | None:
    return value if isinstance(value, int) else None


def _key(config: Mapping[str, Json], name: str) -> str:
    """Return the key under which this config gives a size; the general name if it has none."""
    spellings = SIZE_NAMES[name]
    return next((s for s in spellings if config.get(s) is not None), spellings[0])


def _is_dropout(key: str) -> bool:
    return "dropout" in key or key.endswith("_pdrop")


def _cut_lists(small: JsonObject, layers: int) -> None:
    """Keep one of each layer type in per-layer lists; rotary factor lists keep half a head's length."""
    kinds = small.get("layer_types")
    if isinstance(kinds, list) and kinds:
        cut = kinds[:layers]
        missing = [kind for kind in dict.fromkeys(kinds) if kind not in cut]
        small["layer_types"] = [*cut[: layers - len(missing)], *missing][:layers] if missing else cut
    if (number := _size(small.get("max_window_layers"))) is not None:
        small["max_window_layers"] = min(number, layers)
    for name in ("rope_parameters", "rope_scaling"):
        rope = small.get(name)
        if isinstance(rope, dict):
            small[name] = {k: v[: HEAD_DIM // 2] if isinstance(v, list) else v for k, v in rope.items()}


def _shrink_experts(small: JsonObject, hidden: int) -> None:
    for name in _EXPERT_COUNTS:
        if (count := _size(small.get(name))) is not None:
            small[name] = min(count, EXPERTS)
    for name in _EXPERTS_A_TOKEN:
        if (count := _size(small.get(name))) is not None:
            small[name] = min(count, 2)
    for name in ("moe_intermediate_size", "shared_expert_intermediate_size"):
        if isinstance(small.get(name), int):
            small[name] = 2 * hidden
