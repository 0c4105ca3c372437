"""The names of a model's tensors by its config, and a foreign file's names brought to them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from paceline.checkpoint.base_model_files import base_files
from paceline.checkpoint.convert.source_state import incomplete, misfit
from paceline.checkpoint.export.architecture import gives_scores, is_known, text_model_of
from paceline.checkpoint.format.strict_json import parse_object
from paceline.core.files import MAX_CONFIG_BYTES, open_file, read_bytes
from paceline.core.json_types import JsonObject
from paceline.models.heads.sequence_classification import HEAD
from paceline.models.lora.names import PEFT_PREFIX
from paceline.models.module_tensors import persistent_buffers
from paceline.protocols.roles import Role
from paceline.strategies.optimizers.build import decays

T = TypeVar("T")


class Sized(Protocol):
    """What has a shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...


_CONFIGS = ("config.json", "generation_config.json", "adapter_config.json")
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "module.")


@dataclass(frozen=True)
class ModelNames:
    """``parameters`` in the order of the model, with their shapes; ``decaying``: those that weight decay
    applies to; ``buffers``: those that a checkpoint holds; ``aliases``: other names of tied parameters.
    """

    parameters: Mapping[str, tuple[int, ...]]
    decaying: frozenset[str]
    buffers: Mapping[str, tuple[int, ...]]
    aliases: frozenset[str]


def model_names(config: JsonObject, where: Path) -> ModelNames:
    """Return the names of the model of a ``config.json``. Raises CheckpointError."""
    if not is_known(config):
        hint = "export its weights with the program that wrote it, and set model.name_or_path"
        found = f"model_type: {config.get('model_type')!r}"
        raise misfit("Transformers has no causal language model of this type", str(where), found, hint)
    try:
        model = text_model_of(dict(config))
    except Exception as exc:  # whatever a config of a stranger makes Transformers raise
        what, found = "Transformers builds no model of this config", f"{type(exc).__name__}: {exc}"[:300]
        raise misfit(what, str(where / "config.json"), found, "put the model's own config there") from exc
    named = dict(model.named_parameters())
    buffers = {name: tuple(b.shape) for name, b in persistent_buffers(model)}
    return ModelNames(
        {name: tuple(p.shape) for name, p in named.items()},
        frozenset(name for name, p in named.items() if decays(name, p)),
        buffers,
        frozenset(set(model.state_dict()) - set(named) - set(buffers)),
    )


def by_model(given: Mapping[str, T], names: ModelNames, where: str) -> dict[str, T]:
    """Return tensors by the model's own names: without a wrapper's prefix, a tied one once.

    Raises CheckpointError if one is missing, or is none of the model's.
    """
    plain = unwrapped(given, set(names.parameters))
    expected = {*names.parameters, *names.buffers}
    missing, unknown = sorted(expected - set(plain)), sorted(set(plain) - expected - names.aliases)
    missing = [name for name in missing if name in names.parameters]
    for what, some in (("are missing", missing), ("are none of the model's", unknown)):
        if some:
            listed = ", ".join(some[:5]) + (f" and {len(some) - 5} more" if len(some) > 5 else "")
            hint = "give the model's folder with --model" if len(some) > 5 else ""
            raise misfit(f"tensors {what}", where, listed, hint)
    return {name: plain[name] for name in expected if name in plain}


def unwrapped(given: Mapping[str, T], expected: Collection[str]) -> dict[str, T]:
    """Return names without the words of wrappers, and without a prefix that all share."""
    plain: dict[str, T] = {}
    for name, value in given.items():
        bare = name
        for word in _WRAPPERS:
            bare = bare.replace(word, "") if word != "module." or bare.startswith(word) else bare
        bare = bare.removeprefix("module.")
        plain[bare] = value
    if any(name in expected for name in plain):
        return plain
    prefixes = {
        name[: -len(wanted)]
        for name in list(plain)[:50]
        for wanted in expected
        if name.endswith(f".{wanted}")
    }
    for prefix in sorted(prefixes, key=len):
        if all(f"{prefix}{wanted}" in plain for wanted in expected):
            return {name.removeprefix(prefix): v for name, v in plain.items() if name.startswith(prefix)}
    return plain


def adapter_name(name: str) -> str:
    """Return our name of an adapter's tensor: peft's, without its prefix and without the adapter's name."""
    bare = name.rpartition(PEFT_PREFIX)[2].removeprefix(
        "module."
    )  # an engine's own prefix comes before peft's
    for word in (".lora_A.default.", ".lora_B.default."):
        bare = bare.replace(word, word.replace("default.", ""))
    return bare.replace(".modules_to_save.default.", ".").replace(".modules_to_save.", ".")


def role_of(config: JsonObject, adapter: JsonObject | None, weights: Mapping[str, Sized]) -> Role:
    """Return the part that a foreign model plays, by its class or its adapter's: one that gives one score is
    a reward model, one that gives several a classifier.
    """
    scores = gives_scores(config) or (adapter is not None and adapter.get("task_type") == "SEQ_CLS")
    if not scores:
        return Role.POLICY
    rows = [tensor.shape[0] for name, tensor in weights.items() if name == f"{HEAD}.weight" and tensor.shape]
    return Role.CLASSIFIER if rows and rows[0] > 1 else Role.REWARD


def read_config(folder: Path, name: str = "config.json") -> JsonObject:
    """Return a JSON file of a folder. Raises CheckpointError."""
    path = folder / name
    try:
        with open_file(path) as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as exc:
        raise incomplete(f"{name} cannot be read", str(path), exc.strerror or "") from None
    return parse_object(data, str(path), max_bytes=MAX_CONFIG_BYTES)


def side_files(folder: Path) -> dict[str, bytes]:
    """Return the config, the tokenizer's files and what else a model's folder has, by name."""
    own = {name: read_bytes(folder / name) for name in _CONFIGS if (folder / name).is_file()}
    found = {**base_files(folder), **own}
    return {name: data for name, data in found.items() if not name.endswith(".json") or _is_json(data)}


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
