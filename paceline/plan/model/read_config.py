"""Read a model's shape from its ``config.json``: sizes and parameter counts. No torch, no Transformers."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.files import MAX_CONFIG_BYTES, is_local_name, read_text
from paceline.core.json_types import Json, JsonObject, as_number, as_object
from paceline.plan import codes
from paceline.plan.mesh import divisors
from paceline.plan.model.family import SIZE_NAMES, composite_of, family_of, supported, text_part
from paceline.plan.model.files.safetensors_headers import (
    other_sizes,
    read_json,
    weights_findings,
    with_carried,
    with_quantised,
    with_stored,
)
from paceline.plan.model.kernels import has_dropout, has_softcap
from paceline.plan.model.parameter_list import counted, with_counts
from paceline.plan.model.quantized_weights import plain_config, quantised_base
from paceline.plan.model.shape import PACKED, PADDED, ModelShape, config_coefficient, latent_of, mixture_of
from paceline.plan.model.supported import obstacle, unsupported
from paceline.plan.model.tower import tower_of

if TYPE_CHECKING:
    from paceline.config.sections.model import ModelSection


def shape_from_config(config: Mapping[str, Json], where: str = "model.config") -> ModelShape:
    """Return the shape for a ``config.json`` (or ``model.config``).

    Raises ConfigError for missing or impossible sizes.
    """
    composite, whole = str(config.get("model_type")) if composite_of(config) else "", config
    config = text_part(config)
    family = str(config.get("model_type") or "")
    if not family:
        raise ConfigError(codes.PLAN_MODEL_TYPE(where, "no model_type"))
    defaults = family_of(family).sizes
    sizes = dict(defaults)
    for name, spellings in SIZE_NAMES.items():
        for spelling in spellings:
            if config.get(spelling) is not None:
                sizes[name] = _whole(config[spelling], spelling, where, LARGEST.get(name, LARGEST_SIZE))
                break
    # Unknown families must name every size; a known one may have no attention heads.
    if defaults and "heads" not in defaults:
        sizes.setdefault("heads", 0)
    missing = [name for name in ("hidden_size", "layers", "heads", "vocab") if name not in sizes]
    if missing:
        close = difflib.get_close_matches(family, supported(), n=2)
        near = f"; or model_type: {' or '.join(close)}" if close else ""
        raise ConfigError(
            codes.PLAN_MODEL_SIZES(
                where,
                ", ".join(missing),
                family=family,
                hint="; ".join(f"{SIZE_NAMES[name][0]}: …" for name in missing) + near,
            )
        )
    tower = tower_of(whole, sizes["hidden_size"]) if composite else None
    return replace(_build(family, sizes, config, where), composite=composite, tower=tower)


def scoring(shape: ModelShape, outputs: int = 1) -> ModelShape:
    """Return the shape with a ``Linear(hidden, outputs)`` head without bias (reward model or classifier).

    A head that is not stored is initialised in fp32, and the rest is then also read in fp32.
    """
    stored = shape.stored if shape.stored_score or shape.stored == "float32" else ""
    return with_counts(replace(shape, scalar_head=True, head_outputs=outputs, stored=stored))


def config_from_path(path: str | Path) -> JsonObject:
    """Return the ``config.json`` of a local model: a folder, or that file. Raises ConfigError."""
    file = Path(path).expanduser()
    file = file / "config.json" if file.is_dir() else file
    try:
        config = read_json(file, MAX_CONFIG_BYTES)
    except OSError as exc:
        what, reason = "the model has no readable config.json", exc.strerror or str(exc)
        raise ConfigError(codes.PLAN_MODEL_CONFIG(what, str(file), reason)) from exc
    except ValueError as exc:
        what = "this config.json is not valid JSON"
        raise ConfigError(codes.PLAN_MODEL_CONFIG(what, str(file), str(exc))) from exc
    if not isinstance(config, dict):
        what = "config.json must contain one object"
        raise ConfigError(codes.PLAN_MODEL_CONFIG(what, str(file), type(config).__name__))
    return config


def shape_of(
    model: ModelSection, environ: Mapping[str, str] | None = None, *, exactly: bool = False
) -> ModelShape | None:
    """Return the shape of the config's model; None if the model is not on this machine yet.

    ``exactly``: query the class for its parameters if no formula counts them exactly (``parameter_list``).

    It is read from ``model.config``, a local folder, or the Hugging Face cache, which ``environ`` may move
    (``HF_HUB_CACHE``, ``HF_HOME``). Nothing is downloaded. Raises ConfigError for a missing folder.
    """
    variables = environ or {}
    if model.config:
        drawn = with_vocabulary(model.config, model, _folder_of(model.tokenizer, None, variables))
        shape = trained_shape(drawn, "model.config", attention=model.attn_implementation)
        return counted(shape, drawn, variables) if exactly else shape
    name = model.name_or_path
    folder = _folder_of(name, model.revision, variables)
    if name and folder is None and is_local_name(name):
        raise ConfigError(
            codes.PLAN_MODEL_MISSING(
                "there is no such folder",
                "model.name_or_path",
                name,
                "give an existing folder, or a hub name like org/model",
            )
        )
    return None if folder is None else _stored_shape(model, folder, variables, exactly)


def _stored_shape(model: ModelSection, folder: Path, environ: Mapping[str, str], exactly: bool) -> ModelShape:
    """Return the shape of a model on this machine; check its files before, and their shapes after."""
    stored = config_from_path(folder)
    config = plain_config(stored)
    own_code = "auto_map" in config and model.trust_remote_code
    in_folder = folder.is_dir()
    where = str(folder / "config.json" if in_folder else folder)
    wrong = (weights_findings(folder) if in_folder else []) or quantised_base(
        stored, "model.name_or_path", own_code
    )
    shape = None if wrong else trained_shape(config, where, own_code, model.attn_implementation)
    if shape is None or (in_folder and not own_code and (wrong := other_sizes(folder, shape))):
        raise ConfigError(*wrong)
    tokenizer = _folder_of(model.tokenizer, None, environ) if model.tokenizer else folder
    resized = with_vocabulary(config, model, tokenizer)
    if resized is not config:
        config = resized
        shape = replace(trained_shape(config, where, own_code, model.attn_implementation), resized=True)
    if exactly:
        code: JsonObject = {"name_or_path": model.name_or_path, "revision": model.revision}
        shape = counted(shape, config, environ, code if own_code else None)
    if not in_folder:
        return shape
    shape = with_quantised(with_stored(shape, folder, config, model.trust_remote_code), folder, stored)
    return with_carried(shape, folder)


def _folder_of(name: str | None, revision: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return a local folder or file, or the hub's folder in the cache; None if it is not here."""
    if not name:
        return None
    local = Path(name).expanduser()
    home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    return (
        local
        if local.exists()
        else cached_model_dir(name, revision, Path(environ.get("HF_HUB_CACHE") or home / "hub"))
    )


def trained_shape(
    config: Mapping[str, Json], where: str, own_code: bool = False, attention: str = "auto"
) -> ModelShape:
    """Return ``shape_from_config`` of a supported model. Raises ConfigError for others (``unsupported``)."""
    problems = unsupported(config, where, own_code, attention)
    if problems:
        raise ConfigError(*problems)
    return shape_from_config(config, where)


def cached_model_dir(name: str, revision: str | None, cache: Path) -> Path | None:
    """Return the folder of hub model ``name`` in the Hugging Face cache; None if not downloaded.

    ``revision`` defaults to ``main``.
    """
    repo = cache / ("models--" + name.replace("/", "--"))
    ref = repo / "refs" / (revision or "main")
    try:
        commit = read_text(ref).strip()
    except OSError:
        commit = revision or ""
    snapshot = repo / "snapshots" / commit
    return snapshot if commit and (snapshot / "config.json").is_file() else None


#: No model has larger sizes: such a config is damaged or malicious.
LARGEST_SIZE = 2**24
LARGEST = {"layers": 10_000, "vocab": 2**26, "max_positions": 2**40}
#: Sizes to suggest in error messages where 512 would be odd.
_USUAL = {
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
}


def _whole(value: Json, name: str, where: str, largest: int) -> int:
    """Return a size; a list with one value per layer (as in Gemma 3n's files) is accepted if all are
    equal."""
    if (
        name == "intermediate_size"
        and isinstance(value, list)
        and value
        and value.count(value[0]) == len(value)
    ):
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise ConfigError(
            codes.PLAN_MODEL_SIZE(
                f"{name} must be a whole number from 1 to {largest:,}",
                f"{where}.{name}",
                repr(value)[:100],
                f"{name}: {_USUAL.get(name, 512)}",
            )
        )
    return value


def _nearest(number: int, requested: int) -> str:
    """Return the divisors of ``number`` nearest to the given one."""
    legal = divisors(number)
    near = [*[d for d in legal if d < requested][-1:], *[d for d in legal if d > requested][:1]]
    return " or ".join(map(str, near))


def _kv_heads(family: str, sizes: dict[str, int], config: Mapping[str, Json], where: str) -> int:
    """Return the number of KV heads, which some families fix. It must divide the number of heads."""
    hidden, heads = sizes["hidden_size"], sizes["heads"]
    if heads and "head_dim" not in sizes and hidden % heads:
        raise ConfigError(
            codes.PLAN_MODEL_HEADS(
                "hidden_size is not a multiple of num_attention_heads",
                where,
                f"{hidden} and {heads}",
                f"num_attention_heads: {_nearest(hidden, heads)}, or head_dim",
            )
        )
    record = family_of(family)
    kv_heads = (sizes.get("kv_heads") or heads) if record.grouped else heads
    if record.multi_query and not config.get("new_decoder_architecture"):
        kv_heads = 1 if config.get("multi_query", True) else heads
    if heads and heads % kv_heads:
        raise ConfigError(
            codes.PLAN_MODEL_HEADS(
                "num_attention_heads is not a multiple of num_key_value_heads",
                where,
                f"{heads} and {kv_heads}",
                f"num_key_value_heads: {_nearest(heads, kv_heads)}",
            )
        )
    return kv_heads


def _build(family: str, sizes: dict[str, int], config: Mapping[str, Json], where: str) -> ModelShape:
    hidden, heads = sizes["hidden_size"], sizes["heads"]
    kv_heads = _kv_heads(family, sizes, config, where)
    # Sizes that a config may leave out.
    intermediate = sizes.get("intermediate") or 4 * hidden
    record = family_of(family)
    shape = ModelShape(
        model_type=family,
        hidden_size=hidden,
        layers=sizes["layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=(sizes.get("head_dim") or hidden // heads) if heads else 0,
        intermediate=intermediate,
        vocab=sizes["vocab"],
        tied=bool(config.get("tie_word_embeddings", sizes.get("tied", False))) and not record.encoder,
        max_position_embeddings=_positions(sizes.get("max_positions", 0), config),
        num_parameters=0,
        matmul_parameters=0,
        exact=record.counted and not config.get("use_qk_norm"),
        attention_bias=bool(config.get("attention_bias", record.attention_bias)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        mixture=mixture_of(config, sizes["layers"], intermediate, where),
        latent=latent_of(config, where),
        rows=PACKED if obstacle(config) is None else PADDED,
        softcap=has_softcap(config),
        dropout=has_dropout(config),
        sinks=record.sinks,
        rope_by_length=bool(rope_kinds(config) & BY_LENGTH),
        buffers=record.buffers,
        carries=record.carries,
        selects=record.selects,
        router_aux_loss=config_coefficient(config),
    )
    return with_counts(shape)


def _positions(trained: int, config: Mapping[str, Json]) -> int:
    """Return the maximum positions: those trained, extended by linear, dynamic or YaRN scaling.

    llama3 and longrope include it in the trained number. RoBERTa's positions start after the padding token's
    id.
    """
    if family_of(config.get("model_type")).padding_first:
        padding = config.get("pad_token_id", 1)
        return max(0, trained - (padding if isinstance(padding, int) else 0) - 1)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping) or scaling.get("rope_type", scaling.get("type")) not in (
        "linear",
        "dynamic",
        "yarn",
    ):
        return trained
    original, factor = scaling.get("original_max_position_embeddings") or trained, scaling.get("factor") or 1
    if not isinstance(original, int) or not isinstance(factor, (int, float)) or not 0 < factor < 1e6:
        return trained
    return max(trained, int(original * factor))


BY_LENGTH = frozenset({"dynamic", "longrope"})


def rope_kinds(config: Mapping[str, Json]) -> frozenset[str]:
    """Return the kinds of rotary scaling in a ``config.json``: one, or one per layer type.

    Old spellings included.
    """
    sections: list[Json] = [config.get("rope_parameters"), config.get("rope_scaling")]
    return frozenset(kind for section in sections if isinstance(section, Mapping) for kind in _kinds(section))


def _kinds(rope: Mapping[str, Json]) -> Iterator[str]:
    kind = rope.get("rope_type", rope.get("type"))
    if isinstance(kind, str):
        yield {"su": "longrope"}.get(kind, kind)
    for inner in rope.values():
        if isinstance(inner, Mapping):
            yield from _kinds(inner)


def model_config(model: ModelSection, environ: Mapping[str, str]) -> JsonObject:
    """Return ``model.config``, or the ``config.json`` of a local folder or the Hugging Face cache.

    Raises ConfigError if it is not on this machine.
    """
    if model.config:
        return dict(model.config)
    name = model.name_or_path
    folder = _folder_of(name, model.revision, environ)
    if folder is not None and folder.is_dir():
        return config_from_path(folder)
    raise ConfigError(
        codes.PLAN_MODEL_CONFIG(
            "the model's config.json is not on this machine",
            "model.name_or_path",
            name or "nothing",
            f"download it first: hf download {name} config.json"
            if name
            else "model.name_or_path or model.config",
        )
    )


def pretrained_dtype(model: ModelSection, environ: Mapping[str, str]) -> str | None:
    """Return the dtype (torch's name) of the pretrained weights; None from scratch, or if not known yet."""
    if not model.name_or_path:
        return None
    try:
        config = model_config(model, environ)
    except ConfigError:
        return None  # not downloaded yet; errors in it are reported where the shape is read
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else {}
    dtype = next((c[key] for c in (config, inner) for key in ("dtype", "torch_dtype") if c.get(key)), None)
    return str(dtype).removeprefix("torch.") if dtype else None


_MOST_BYTES = 64 << 20  # the largest tokenizer.json of the hub's known models has 35 MB


def with_vocabulary(config: JsonObject, model: ModelSection, folder: Path | None) -> JsonObject:
    """Return ``config`` with the ``vocab_size`` that the run will have (``models.factory``).

    The size is unchanged if the tokenizer is not on this machine, fits, or must not resize the embedding. A
    model from scratch without a size takes the tokenizer's. ``folder``: that of the tokenizer's files.
    """
    added = (*model.add_tokens, *model.add_special_tokens, *model.special_tokens.values())
    need = None if folder is None else tokenizer_rows(folder, added)
    inner = as_object(config["text_config"]) if isinstance(config.get("text_config"), dict) else config
    have = inner.get("vocab_size", 0 if model.config is not None else None)
    if need is None or not isinstance(have, int) or need <= have or model.resize_embeddings == "never":
        return config
    multiple = max(1, model.embedding_multiple)
    rows: JsonObject = {"vocab_size": -(-need // multiple) * multiple}
    return {**config, **rows} if inner is config else {**config, "text_config": {**inner, **rows}}


def tokenizer_rows(folder: Path, added: tuple[str, ...]) -> int | None:
    """Return the largest token id + 1 with ``added`` tokens; None without a readable ``tokenizer.json``."""
    try:
        tokenizer = as_object(read_json(folder / "tokenizer.json", _MOST_BYTES))
        ids = _ids(as_object(tokenizer["model"])["vocab"])
        added_tokens = tokenizer.get("added_tokens") or []
        for entry in added_tokens if isinstance(added_tokens, list) else ():
            ids[str(as_object(entry)["content"])] = as_number(as_object(entry)["id"])
    except (OSError, ValueError, KeyError, ConfigError):
        return None
    return int(max(ids.values(), default=-1)) + 1 + len(set(added) - set(ids))


def _ids(vocabulary: Json) -> dict[str, float]:
    """Return token → id of a ``vocab``: an object, or Unigram's pairs of token and score in their order."""
    if isinstance(vocabulary, dict):
        return {token: as_number(number) for token, number in vocabulary.items()}
    if not isinstance(vocabulary, list):
        raise ValueError("no vocabulary")
    return {str(pair[0]): float(index) for index, pair in enumerate(vocabulary) if isinstance(pair, list)}
