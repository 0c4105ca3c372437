"""A small model of the same architecture, which ``paceline verify`` trains in place of the real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.plan.model.families import FAMILY_SIZES, SIZE_NAMES

HEAD_DIM = 16
EXPERTS = 4
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_A_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
_WINDOWS = ("sliding_window", "attention_chunk_size")


def shrunk(config: Mapping[str, Any], *, layers: int = 2, kv_heads: int = 2) -> dict[str, Any]:
    """Return the config of a small model: same family, norms, biases, tying, head grouping, layer types.

    ``layers``: decoder layers of the result (at most the model's own). ``kv_heads``: KV heads if the model
    groups its heads, else heads; tensor parallelism must divide them. Heads have 16 dimensions, windows 32
    positions, mixtures 4 experts; every dropout is 0. The vocabulary is unchanged.
    """
    small = {k: v for k, v in dict(config.get("text_config") or config).items() if not _is_dropout(k)}
    small |= {k: 0.0 for k in dict(config.get("text_config") or config) if _is_dropout(k)}
    # The model's own sizes, by config or family.
    family = str(small.get("model_type") or "")
    have = {
        **FAMILY_SIZES.get(family, {}),
        **{name: small[_key(small, name)] for name in SIZE_NAMES if _key(small, name) in small},
    }
    # Keep the grouping of heads and the ratio of MLP width to hidden size.
    heads = have.get("heads") or kv_heads
    grouped = bool(have.get("kv_heads")) and have["kv_heads"] < heads
    new_heads = 2 * kv_heads if grouped else max(kv_heads, 4 if kv_heads in (1, 2, 4) else kv_heads)
    hidden = new_heads * HEAD_DIM
    ratio = (have.get("intermediate") or 4 * have.get("hidden_size", hidden)) / (
        have.get("hidden_size") or hidden
    )
    sizes = {
        "hidden_size": hidden,
        "layers": min(layers, have.get("layers") or layers),
        "heads": new_heads,
        "kv_heads": kv_heads if grouped else (new_heads if "kv_heads" in have else None),
        "intermediate": max(1, round(hidden * min(ratio, 4) / (4 * kv_heads))) * 4 * kv_heads,
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
        if small.get(name):
            small[name] = min(int(small[name]), 32)
    return small


def _key(config: Mapping[str, Any], name: str) -> str:
    """Return how this config spells a size; the general name if it leaves it out."""
    spellings = SIZE_NAMES[name]
    return next((s for s in spellings if config.get(s) is not None), spellings[0])


def _is_dropout(key: str) -> bool:
    return "dropout" in key or key.endswith("_pdrop")


def _cut_lists(small: dict[str, Any], layers: int) -> None:
    """Keep one of each layer type in per-layer lists; rotary factor lists keep half a head's length."""
    kinds = small.get("layer_types")
    if isinstance(kinds, list) and kinds:
        cut = kinds[:layers]
        missing = [kind for kind in dict.fromkeys(kinds) if kind not in cut]
        small["layer_types"] = [*cut[: layers - len(missing)], *missing][:layers] if missing else cut
    if isinstance(small.get("max_window_layers"), int):
        small["max_window_layers"] = min(small["max_window_layers"], layers)
    for name in ("rope_parameters", "rope_scaling"):
        rope = small.get(name)
        if isinstance(rope, dict):
            small[name] = {k: v[: HEAD_DIM // 2] if isinstance(v, list) else v for k, v in rope.items()}


def _shrink_experts(small: dict[str, Any], hidden: int) -> None:
    for name in _EXPERT_COUNTS:
        if isinstance(small.get(name), int):
            small[name] = min(small[name], EXPERTS)
    for name in _EXPERTS_A_TOKEN:
        if isinstance(small.get(name), int):
            small[name] = min(small[name], 2)
    for name in ("moe_intermediate_size", "shared_expert_intermediate_size"):
        if isinstance(small.get(name), int):
            small[name] = 2 * hidden
