"""The shape of a model from its ``config.json`` alone: sizes and parameter counts, without torch or Transformers."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan.families import EXPERTS, FAMILY_SIZES, SIZE_NAMES

if TYPE_CHECKING:
    from paceline.config.sections.model import ModelSection


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. ``num_parameters`` counts tied weights once.

    ``matmul_parameters`` are those that take part in matrix products for a token: every linear weight and the output head (also when it is
    tied to the embedding), without the embedding look-up, norms and biases; of a mixture of experts only the experts a token visits.
    A forward and backward takes 6 × ``matmul_parameters`` FLOP a token (Kaplan et al. 2020, arXiv:2001.08361, eq. 2.2), attention aside.
    ``exact`` is False for a family this file does not know: it is counted as a Llama. ``scalar_head``: one number a document in place of logits.
    """

    model_type: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    max_position_embeddings: int
    num_parameters: int
    matmul_parameters: int
    exact: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    experts: int = 0
    scalar_head: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ModelShape:
        return ModelShape(**data)


def shape_from_config(config: Mapping[str, Any], where: str = "model.config") -> ModelShape:
    """The shape behind the contents of a ``config.json`` (or ``model.config``). Raises ConfigError for missing or impossible sizes."""
    config = dict(config.get("text_config") or config)
    family = str(config.get("model_type") or "")
    if not family:
        raise ConfigError(
            Diagnostic("plan.model_type", "the model's family is missing", where, "no model_type", "model_type: llama")
        )
    sizes = dict(FAMILY_SIZES.get(family, {}))
    for name, spellings in SIZE_NAMES.items():
        for spelling in spellings:
            if config.get(spelling) is not None:
                sizes[name] = _whole(config[spelling], spelling, where)
                break
    if family in EXPERTS and config.get(EXPERTS[family][4]) is not None:
        sizes["intermediate"] = _whole(config[EXPERTS[family][4]], EXPERTS[family][4], where)
    missing = [name for name in ("hidden_size", "layers", "heads", "vocab") if name not in sizes]
    if missing:
        close = difflib.get_close_matches(family, FAMILY_SIZES, n=2)
        near = f"; or model_type: {' or '.join(close)}" if close else ""
        raise ConfigError(
            Diagnostic(
                "plan.model_sizes",
                f"'{family}' is not a family known here, and these sizes are missing",
                where,
                ", ".join(missing),
                "; ".join(f"{SIZE_NAMES[name][0]}: …" for name in missing) + near,
            )
        )
    return _build(family, sizes, config, where)


def scoring(shape: ModelShape) -> ModelShape:
    """The same trunk under a head of one number (a reward model), ``Linear(hidden, 1)`` without bias."""
    embedding = shape.vocab * shape.hidden_size
    gone = (0 if shape.tied else embedding) + (shape.vocab if shape.model_type == "phi" else 0)
    return replace(
        shape,
        num_parameters=shape.num_parameters - gone + shape.hidden_size,
        matmul_parameters=shape.matmul_parameters - embedding + shape.hidden_size,
        scalar_head=True,
    )


def shape_from_path(path: str | Path) -> ModelShape:
    """The shape of a local model: a directory with a ``config.json``, or such a file. Raises ConfigError."""
    file = Path(path).expanduser()
    return shape_from_config(config_from_path(file), str(file / "config.json" if file.is_dir() else file))


def config_from_path(path: str | Path) -> dict[str, Any]:
    """The ``config.json`` of a local model: of a directory, or such a file. Raises ConfigError."""
    file = Path(path).expanduser()
    file = file / "config.json" if file.is_dir() else file
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(
            Diagnostic(
                "plan.model_config", "the model has no readable config.json", str(file), exc.strerror or str(exc)
            )
        ) from exc
    except ValueError as exc:
        raise ConfigError(Diagnostic("plan.model_config", "this config.json is no JSON", str(file), str(exc))) from exc
    if not isinstance(config, dict):
        raise ConfigError(
            Diagnostic("plan.model_config", "a config.json holds one object", str(file), type(config).__name__)
        )
    return config


def shape_of(model: ModelSection, environ: Mapping[str, str] | None = None) -> ModelShape | None:
    """The shape of the config's model: from ``model.config``, a local folder, or the Hugging Face cache; None when it is not here yet.

    ``environ`` may move the cache (``HF_HUB_CACHE``, ``HF_HOME``). Nothing is downloaded. Raises ConfigError for a folder that is missing.
    """
    if model.config:
        return shape_from_config(model.config)
    name = model.name_or_path
    if not name:
        return None
    local = Path(name).expanduser()
    if local.exists():
        return shape_from_path(local)
    if name.startswith(("/", "./", "../", "~")):
        raise ConfigError(
            Diagnostic(
                "plan.model_missing",
                "there is no such folder",
                "model.name_or_path",
                name,
                "an existing folder, or a hub name like org/model",
            )
        )
    given = environ or {}
    home = Path(given.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cached = cached_model_dir(name, model.revision, Path(given.get("HF_HUB_CACHE") or home / "hub"))
    return shape_from_path(cached) if cached else None


def cached_model_dir(name: str, revision: str | None, cache: Path) -> Path | None:
    """Where the Hugging Face cache under ``cache`` keeps hub model ``name`` (its ``revision``, default ``main``); None when not downloaded."""
    repo = cache / ("models--" + name.replace("/", "--"))
    ref = repo / "refs" / (revision or "main")
    try:
        commit = ref.read_text(encoding="utf-8").strip()
    except OSError:
        commit = revision or ""
    snapshot = repo / "snapshots" / commit
    return snapshot if commit and (snapshot / "config.json").is_file() else None


def _whole(value: Any, name: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            Diagnostic(
                "plan.model_size", f"{name} is a whole number from 1 up", f"{where}.{name}", repr(value), f"{name}: 512"
            )
        )
    return value


def _nearest(number: int, asked: int) -> str:
    """The divisors of ``number`` next to ``asked``."""
    legal = [d for d in range(1, number + 1) if number % d == 0]
    return " or ".join(map(str, [*[d for d in legal if d < asked][-1:], *[d for d in legal if d > asked][:1]]))


def _build(family: str, sizes: dict[str, Any], config: Mapping[str, Any], where: str) -> ModelShape:
    hidden, heads = sizes["hidden_size"], sizes["heads"]
    if "head_dim" not in sizes and hidden % heads:
        raise ConfigError(
            Diagnostic(
                "plan.model_heads",
                "hidden_size is not a multiple of num_attention_heads",
                where,
                f"{hidden} and {heads}",
                f"num_attention_heads: {_nearest(hidden, heads)}, or head_dim",
            )
        )
    kv_heads = heads if family in ("gpt2", "gpt_neox") else sizes.get("kv_heads") or heads  # those know no other number
    if heads % kv_heads:
        raise ConfigError(
            Diagnostic(
                "plan.model_heads",
                "num_attention_heads is not a multiple of num_key_value_heads",
                where,
                f"{heads} and {kv_heads}",
                f"num_key_value_heads: {_nearest(heads, kv_heads)}",
            )
        )
    tied = bool(config.get("tie_word_embeddings", sizes.get("tied", False)))
    head_dim = sizes.get("head_dim") or hidden // heads
    intermediate = sizes.get("intermediate") or 4 * hidden
    full = dict(
        sizes,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        max_positions=sizes.get("max_positions", 0),
    )
    extra, matmul = _count(family, full, config)
    embedding = sizes["vocab"] * hidden
    return ModelShape(
        model_type=family,
        hidden_size=hidden,
        layers=sizes["layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=sizes["vocab"],
        tied=tied,
        max_position_embeddings=_positions(full["max_positions"], config),
        num_parameters=extra + embedding * (1 if tied else 2),
        matmul_parameters=matmul + embedding,
        exact=family in FAMILY_SIZES,
        attention_bias=bool(config.get("attention_bias", family == "gpt_neox")),
        mlp_bias=bool(config.get("mlp_bias", False)),
        experts=_experts(family, config)[0],
    )


def _experts(family: str, config: Mapping[str, Any]) -> tuple[int, int]:
    """(experts of a layer, how many of them a token visits); (0, 0) for a dense model."""
    if family not in EXPERTS:
        return 0, 0
    count, default, each, visited, _ = EXPERTS[family]
    return int(config.get(count, default)), int(config.get(each, visited))


def _positions(trained: int, config: Mapping[str, Any]) -> int:
    """Positions the model can take: those written down, stretched by linear, dynamic or YaRN scaling (llama3 and longrope count it in)."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) not in ("linear", "dynamic", "yarn"):
        return trained
    original = int(scaling.get("original_max_position_embeddings") or trained)
    return max(trained, int(original * float(scaling.get("factor") or 1)))


def _count(family: str, s: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, int]:
    """(all parameters without the token embedding and the head's weight, linear weights a token visits without the head)."""
    hidden, layers, inter = s["hidden_size"], s["layers"], s["intermediate"]
    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    attention = hidden * q * 2 + hidden * kv * 2
    if family in ("gpt2", "phi", "gpt_neox"):
        linear = attention + 2 * hidden * inter
        attention_bias = 0 if family == "gpt_neox" and config.get("attention_bias") is False else q + 2 * kv + hidden
        norms = {"gpt2": 4, "phi": 2, "gpt_neox": 4}[family] * hidden  # weight and bias of one or two LayerNorms
        total = layers * (linear + attention_bias + inter + hidden + norms) + 2 * hidden
        total += s["max_positions"] * hidden if family == "gpt2" else 0  # learnt positions
        total += s["vocab"] if family == "phi" else 0  # the head's bias
        return total, layers * linear
    mlp = 3 * hidden * inter
    visited = total_mlp = mlp
    if family in EXPERTS:
        count, each = _experts(family, config)
        router = hidden * count
        total_mlp = mlp * count + router
        visited = mlp * each + router
    bias = 0
    if family == "qwen2":
        bias = q + 2 * kv
    elif config.get("attention_bias"):
        bias = q + 2 * kv + hidden
    if config.get("mlp_bias"):
        bias += 2 * inter + hidden
    norms = (4 if family in ("gemma2", "gemma3_text") else 2) * hidden
    if family in ("qwen3", "qwen3_moe", "gemma3_text"):
        norms += 2 * s["head_dim"]
    return layers * (attention + total_mlp + bias + norms) + hidden, layers * (attention + visited)
