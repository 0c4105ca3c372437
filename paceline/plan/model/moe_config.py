"""Read mixtures of experts and low-rank (latent) attention from a ``config.json``. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.plan import codes
from paceline.plan.model.family import family_of

# Names of the same number across families; a folder may use any of them.
COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
VISITED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_MOST = 100_000


@dataclass(frozen=True)
class Mixture:
    """``experts`` of width ``width`` in every layer except ``dense_layers``; ``visited`` per token.

    ``shared``: width of the shared expert (0: none); ``shared_gate``: it has a gate.
    """

    experts: int
    visited: int
    width: int
    shared: int = 0
    shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1); ``query_rank`` 0: full rank."""

    query_rank: int
    rank: int
    nope: int
    rope: int
    value: int


FURTHER = ("shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step")
LOW_RANKS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
READ = (*COUNT, *VISITED, *WIDTH, *SHARED, *FURTHER, *LOW_RANKS)


def mixture_of(config: Mapping[str, Json], layers: int, intermediate: int, where: str) -> Mixture | None:
    """Return the config's mixture of experts; None for a dense model. Raises ConfigError."""
    experts = _number(config, COUNT, where)
    if experts <= 1:
        return None
    width = _number(config, WIDTH, where) or intermediate
    shared = _number(config, FURTHER[:1], where) or width * _number(config, SHARED, where)
    return Mixture(
        experts,
        min(experts, _number(config, VISITED, where) or 1),
        width,
        shared,
        family_of(config.get("model_type")).shared_gate,
        _dense(config, layers, where),
    )


def latent_of(config: Mapping[str, Json], where: str) -> Latent | None:
    """Return the ranks of latent attention; None for ordinary attention."""
    if not _number(config, ("kv_lora_rank",), where):
        return None
    numbers = [_number(config, (name,), where) for name in LOW_RANKS]
    return Latent(
        0 if ("q_lora_rank" in config and config["q_lora_rank"] is None) else numbers[0], *numbers[1:]
    )


def config_coefficient(config: Mapping[str, Json]) -> float:
    """Return the coefficient of the experts' balance loss that a ``config.json`` asks for.

    0 unless ``output_router_logits`` is true and Transformers computes that loss for the family.
    """
    default = family_of(config.get("model_type")).balance_loss
    if config.get("output_router_logits") is not True or default is None:
        return 0.0
    given = (config.get(key) for key in ("router_aux_loss_coef", "aux_loss_coef"))  # the latter is JetMoE's
    numbers = [value for value in given if isinstance(value, (int, float))]
    return float(numbers[0]) if numbers else default


def _dense(config: Mapping[str, Json], layers: int, where: str) -> tuple[int, ...]:
    """Return the indices of layers without experts."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        return tuple(i for i, kind in enumerate(kinds[:layers]) if kind == "dense")
    first = _number(config, ("first_k_dense_replace",), where)
    only = config.get("mlp_only_layers")
    named = {i for i in only if isinstance(i, int)} if isinstance(only, list) else set()
    step = _number(config, ("decoder_sparse_step",), where) or 1
    return tuple(i for i in range(layers) if i < first or i in named or (i + 1) % step)


def _number(config: Mapping[str, Json], names: tuple[str, ...], where: str) -> int:
    """Return the first of ``names`` that is set, else the family's default; 0 if there is none.

    Raises ConfigError if it is not an integer from 0 to the limit.
    """
    for values in (config, family_of(config.get("model_type")).defaults):
        for name in names:
            value = values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
                raise ConfigError(
                    codes.PLAN_MODEL_SIZE(
                        f"{name} must be a whole number up to {_MOST:,}",
                        f"{where}.{name}",
                        repr(value)[:100],
                        f"{name}: 8",
                    )
                )
            return value
    return 0
