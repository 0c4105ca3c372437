"""A role's model as the config names it: its Hugging Face config, the folder's own ``config.json``."""

from __future__ import annotations

import dataclasses
import errno
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.files import is_local_name
from paceline.core.json_types import Json, JsonObject
from paceline.core.security.remote_code import check_code
from paceline.models import codes
from paceline.plan.model.quantized_weights import quantised_base
from paceline.plan.model.source_keys import family_words
from paceline.rules import codes as rules_codes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# keys that name code, or an attention function that may be code
_STRIPPED = (
    "_attn_implementation",
    "_attn_implementation_internal",
    "auto_map",
    "_name_or_path",
    "transformers_version",
)

_FILES = ["model*.safetensors", "model.safetensors.index.json"]


class ModelSource(Protocol):
    """The part of the ``model:`` section that the factory reads (``config.sections.model.ModelSection``
    satisfies it).
    """

    @property
    def name_or_path(self) -> str | None: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def config(self) -> JsonObject | None: ...
    @property
    def trust_remote_code(self) -> bool: ...
    @property
    def resize_embeddings(self) -> str: ...
    @property
    def embedding_multiple(self) -> int: ...


def load_hf_config(model: ModelSource) -> PreTrainedConfig:
    """Return the Hugging Face config object; keys that name code or an attention function, and how weights
    are quantized, are dropped. Raises ConfigError.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    if model.config is not None:
        values: dict[str, Any] = {k: v for k, v in model.config.items() if k not in _STRIPPED}
        kind = values.pop("model_type", None)
        try:
            made = AutoConfig.for_model(kind, **values)
        except (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
            raise ConfigError(
                codes.MODELS_BAD_CONFIG(
                    "this model cannot be built from its config",
                    "model.config",
                    first_lines(error),
                    "model_type: llama, with hidden_size, num_hidden_layers, num_attention_heads, …",
                )
            ) from error
        refuse_hub_attention(made, "model.config")
        return made
    if model.name_or_path is None:
        raise ConfigError(codes.MODELS_NO_MODEL("model.name_or_path", "nothing"))
    if model.trust_remote_code:
        check_code(model.name_or_path, model.revision)
    try:
        config = AutoConfig.from_pretrained(
            model.name_or_path, revision=model.revision or "main", **code_options(model)
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise ConfigError(cannot_load(model.name_or_path, error)) from error
    refuse_hub_attention(config, model.name_or_path)
    own_code = model.trust_remote_code and bool(getattr(config, "auto_map", None))
    if stored := quantised_base(config.to_dict(), "model.name_or_path", own_code):
        raise ConfigError(*stored)  # a hub name that was not on this machine when the plan was made
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        if getattr(part, "quantization_config", None) is not None:
            del part.quantization_config  # the weights are read as plain ones (models.quantised_folder)
    return config


def raw_config(model: ModelSource) -> JsonObject:
    """Return ``config.json`` as in the folder or on the hub, without what Transformers adds when it reads
    it.
    """
    from transformers import PreTrainedConfig

    read: Any = PreTrainedConfig.get_config_dict
    values, _ = read(model.name_or_path, revision=model.revision or "main")
    return {key: _json(value) for key, value in values.items() if not key.startswith("_")}


def _json(value: Json) -> Json:
    """Encode as Transformers does: infinity, for which JSON has no number, becomes ``{"__float__":
    "Infinity"}``.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")}
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    return {k: _json(v) for k, v in value.items()} if isinstance(value, dict) else value


def code_options(model: ModelSource) -> dict[str, bool | str | None]:
    """Return the options for Python code that comes with the model: whether it may run, and from which
    commit. The code may be in another repository than the weights.
    """
    return (
        {"trust_remote_code": True, "code_revision": model.revision}
        if model.trust_remote_code
        else {"trust_remote_code": False}
    )


def cannot_load(name: str, error: Exception) -> Diagnostic:
    if is_local_name(name) and not Path(name).exists():
        return codes.MODELS_CANNOT_LOAD(
            what="there is no such folder",
            where="model.name_or_path",
            found=f"{name}: {Path(name).absolute()}",
            hint="name the folder as it is called from here, or by its absolute path",
        )
    remedy = "use a folder with config.json and *.safetensors, or a hub name that has them"
    if "trust_remote_code" in str(error):
        remedy = (
            "the model needs its own code: set trust_remote_code: true, and revision to the"
            " 40-digit commit that you have reviewed"
        )
    return codes.MODELS_CANNOT_LOAD(
        what="this model cannot be loaded (safetensors only)",
        where="model.name_or_path",
        found=f"{name}: {first_lines(error)}",
        hint=remedy,
    )


def first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__


def refuse_hub_attention(config: PreTrainedConfig | None, name: str) -> None:
    """Raise ConfigError ``sec.attention_kernel`` if the Hugging Face ``config`` of model ``name`` names an
    attention as ``org/repository``, which Transformers would download and run.
    """
    kernels = [name for name in _kernel_names(config) if "/" in name]
    if kernels:
        reason = "the model's config.json requests an attention implementation that is code from the hub"
        remedy = (
            "remove attn_implementation from its config.json; model.attn_implementation sets the"
            " implementation for this run"
        )
        raise ConfigError(
            rules_codes.SEC_ATTENTION_KERNEL(reason, "model.name_or_path", f"{name}: {kernels[0]}", remedy)
        )


def _kernel_names(config: PreTrainedConfig | None) -> Iterator[str]:
    """Yield the attention implementations of a config and of its sub-configs (text, vision, …)."""
    kernel = getattr(config, "_attn_implementation", None)
    yield from map(str, kernel.values() if isinstance(kernel, Mapping) else [kernel])
    for inner in getattr(config, "sub_configs", None) or ():
        if getattr(config, inner, None) is not None:
            yield from _kernel_names(getattr(config, inner))


SHOWN = 8  # names in the message


def config_keys(raw: Mapping[str, Json], config: PreTrainedConfig) -> str:
    """Return one line for the log about ``raw``, a language model's part of ``config.json``. It gives the
    number of keys, the keys of ``config``'s class that are missing, and the keys that the family's code does
    not know.
    """
    from transformers import PreTrainedConfig

    general, declared = _fields(PreTrainedConfig), _fields(type(config))
    names = dict(getattr(config, "attribute_map", None) or {})
    keys = {names.get(key, key) for key in raw if not key.startswith("_")}
    keys |= {"rope_parameters"} if keys & {"rope_theta", "rope_scaling"} else set()
    words = family_words(str(config.model_type))
    readable = (words.words if words else frozenset()) | declared | {"torch_dtype", "auto_map"}
    out, unread = sorted(declared - general - keys), sorted(keys - readable)
    parts = [f"{len(raw)} keys"]
    if out:
        parts.append(f"{len(out)} left out, at the defaults of {type(config).__name__}: {_listed(out)}")
    if unread:
        parts.append(f"{len(unread)} that nothing in its code reads: {_listed(unread)}")
    return "; ".join(parts)


def _fields(kind: type) -> frozenset[str]:
    """Return the names of a config class's fields; none if it is not a dataclass."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return frozenset(field.name for field in fields)


def _listed(names: Collection[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(list(names)[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def weights_folder(name: str, revision: str | None) -> Path:
    """Return the local folder of ``name``; the hub's weights are downloaded if they are not there yet.
    Raises OSError.
    """
    if Path(name).is_dir():
        return Path(name)
    if is_local_name(name):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(Path(name).absolute()))
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision or "main", allow_patterns=_FILES))
