"""Unusual values in a ``config.json``, for which the model class is tried before a launch. No torch.

Values known to work with every decoder are usual; others need a trial of some seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeGuard

from paceline.core.json_types import Json
from paceline.plan.model.family import SIZE_NAMES

_ACTIVATIONS = frozenset(
    {"silu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "swish", "relu2", "quick_gelu"}
)
_TYPES = frozenset({"float32", "bfloat16", "float16", None})
_LAYERS = frozenset({"full_attention", "sliding_attention"})
_ROPE = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
}
#: Keys without effect on the computation.
_REPORTED = frozenset(
    {
        "model_type",
        "architectures",
        "transformers_version",
        "_name_or_path",
        "auto_map",
        "text_config",
        "id2label",
        "label2id",
        "base_model_tp_plan",
    }
)
_SIZES = frozenset(name for names in SIZE_NAMES.values() for name in names)
_LIKELY_NONE = frozenset({"num_key_value_heads", "num_kv_heads", "head_dim", "n_inner", "sliding_window"})


def unusual(config: Mapping[str, Json], *, written: bool) -> tuple[str, ...]:
    """Return the keys of a ``config.json`` with unusual values.

    ``written``: it is ``model.config``, typed by hand: unknown keys are unusual too (in a folder they belong
    to the family).
    """
    inner = config.get("text_config")
    parts = (config, inner) if isinstance(inner, Mapping) else (config,)
    vocab = next((n for part in parts if isinstance(n := part.get("vocab_size"), int)), 2**26)
    return tuple(
        dict.fromkeys(
            k for part in parts for k, v in part.items() if not _ordinary(k, v, vocab, part, written)
        )
    )


def impossible(config: Mapping[str, Json]) -> tuple[str, ...]:
    """Return values that no class rejects but that give NaN or end the first step (epsilon, dropout, …)."""
    inner = config.get("text_config")
    parts = (config, inner) if isinstance(inner, Mapping) else (config,)
    limits = ((_is_epsilon, 0, 1e6), (_is_dropout, 0, 1), (lambda key: key == "initializer_range", 0, 1e6))
    return tuple(
        f"{k}: {v}"
        for part in parts
        for k, v in part.items()
        for match, least, most in limits
        if match(k) and isinstance(v, (int, float)) and not _number(v, least, most)
    )


def _ordinary(key: str, value: Json, vocab: int, config: Mapping[str, Json], written: bool) -> bool:
    if key in _REPORTED:
        return True
    if key in _SIZES or key == "sliding_window":
        return (value is None and key in _LIKELY_NONE) or (
            _whole(value, 1) and (key != "head_dim" or value % 2 == 0)
        )
    if key == "layer_types":
        layers = next((config[k] for k in SIZE_NAMES["layers"] if k in config), None)
        return isinstance(value, list) and set(map(str, value)) <= _LAYERS and len(value) == layers
    if key.endswith("_token_id"):
        return value is None or all(
            _whole(token, 0) and token < vocab for token in (value if isinstance(value, list) else [value])
        )
    check_value = next((check for match, check in _KINDS if match(key)), None)
    if check_value is not None:
        return check_value(value)
    return not written and (value is None or isinstance(value, (bool, str)) or _number(value, 0, math.inf))


def _whole(value: Json, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Json, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _rope(value: Json) -> bool:
    """Whether rotary scaling is of a known kind with its numbers, the same for all layers."""
    if value is None:
        return True
    if not isinstance(value, Mapping):
        return False
    kind = value.get("rope_type", value.get("type", "default"))
    numbers = {k: v for k, v in value.items() if k not in ("rope_type", "type")}
    if not isinstance(kind, str) or kind not in _ROPE or set(numbers) - {"rope_theta"} != _ROPE[kind]:
        return False
    return all(_number(v, 1, 1e9) for v in numbers.values()) and _number(
        numbers.get("rope_theta", 1e4), 100, 1e9
    )


def _is_epsilon(key: str) -> bool:
    return key.endswith(("_eps", "_epsilon"))


def _is_dropout(key: str) -> bool:
    return "dropout" in key or key.endswith("_pdrop")


_KINDS: tuple[tuple[Callable[[str], bool], Callable[[Json], bool]], ...] = (
    (_is_epsilon, lambda v: _number(v, 1e-20, 0.1)),
    (_is_dropout, lambda v: _number(v, 0, 0.9)),
    (lambda key: key == "initializer_range", lambda v: _number(v, 1e-6, 1)),
    (lambda key: key in ("rope_theta", "rotary_emb_base"), lambda v: _number(v, 100, 1e9)),
    (lambda key: key in ("rope_scaling", "rope_parameters"), _rope),
    (
        lambda key: key in ("hidden_act", "hidden_activation", "activation_function"),
        lambda v: isinstance(v, str) and v in _ACTIVATIONS,
    ),
    (
        lambda key: key in ("dtype", "torch_dtype"),
        lambda v: v is None or (isinstance(v, str) and v in _TYPES),
    ),
    (
        lambda key: (
            key
            in (
                "tie_word_embeddings",
                "attention_bias",
                "mlp_bias",
                "use_cache",
                "use_sliding_window",
            )
        ),
        lambda v: isinstance(v, bool),
    ),
)
