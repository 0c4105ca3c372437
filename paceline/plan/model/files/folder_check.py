"""Check a model's folder without loading it: config, weights, shards. Reads sizes and headers; no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.files import MAX_INDEX_BYTES, read_text, special_files
from paceline.core.git_lfs import pointers_in
from paceline.core.rundir import RunDir
from paceline.plan import codes
from paceline.plan.model.read_config import config_from_path
from paceline.plan.model.safetensors_headers import damage

#: What only a checkpoint of ours has, and its adapter's config, from the checkpoint and from the run
_MANIFEST, _ADAPTERS = "manifest.json", "**/hf/adapter_config.json"
_CONFIGS = ("config.json", "adapter_config.json")
_INDEX = "model.safetensors.index.json"
_ADDRESS = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co|hf-mirror\.com)/([\w.-]+/[\w.-]+)")
_PICKLES = ("*.bin", "*.pt", "*.pth")
#: Transformers reads the pickles itself (torch.load with weights_only) and writes safetensors
_CONVERT = (
    'python -c "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T;'
    ' [c.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) for c in (M, T)]" {} {}'
)
_CONVERT_ADAPTER = (
    'python -c "import sys; from peft import AutoPeftModelForCausalLM as M;'
    ' M.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])" {} {}'
)


def check_model_folder(name: str, key: str) -> list[Diagnostic]:
    """Return why a folder cannot be loaded as a model; empty for a hub name.

    ``key``: the config key that names it.
    """
    folder = Path(name).expanduser()
    if not folder.exists():
        return list(_not_there(folder, name, key))
    if not folder.is_dir():
        hint = (
            f"{key.rpartition('.')[2]}: {folder.parent}"
            if folder.parent != Path(".")
            else "give the folder that contains it"
        )
        return [codes.MODEL_NOT_A_FOLDER(key, name, hint=hint)]
    if not (folder / "config.json").is_file() and (folder / "adapter_config.json").is_file():
        return [adapter_folder(folder, key)]
    if run := of_a_run(folder, key):
        return [run]
    if special := special_files(folder):
        return [_special(folder, special, key)]
    if (pointers := pointers_in(folder, key)) is not None:
        return [pointers]
    if (folder / "adapter_config.json").is_file():
        what = "this folder contains a model and an adapter, which Transformers would lay on it"
        hint = "merge it (merge_and_unload of peft), or move adapter_*.* to a folder of its own"
        return [codes.MODEL_ADAPTER_FOLDER(what, key, f"{folder}/adapter_config.json", hint)]
    try:
        config_from_path(folder)
    except ConfigError as error:
        return list(error.diagnostics)
    return list(_weights(folder, key))


def _special(folder: Path, special: list[str], key: str) -> Diagnostic:
    return codes.MODEL_SPECIAL_FILE(key, f"{folder}: {', '.join(special[:4])}")


def _not_there(folder: Path, name: str, key: str) -> Iterator[Diagnostic]:
    """Yield an error for a local path, or for a name next to other model folders."""
    local = name.startswith(("/", "./", "../", "~")) or name.count("/") > 1
    beside = (
        sorted(f.parent.name for f in folder.parent.glob("*/config.json")) if folder.parent.is_dir() else []
    )
    if not local and (name.count("/") != 1 or not beside):
        return  # a hub name
    if address := _ADDRESS.match(name):
        yield codes.PLAN_MODEL_MISSING(
            "this is a web address; give the hub name of the model",
            key,
            name,
            f"{key.rpartition('.')[2]}: {address[1]}",
        )
        return
    found = f"{name}; in {folder.parent}: {', '.join(beside[:6]) or 'no models'}"
    yield codes.PLAN_MODEL_MISSING(
        "there is no such folder", key, found, "give an existing folder, or a hub name like org/model"
    )


def adapter_folder(folder: Path, key: str) -> Diagnostic:
    """Return the error for a folder of an adapter alone, with its base as the remedy."""
    try:
        base = json.loads(read_text(folder / "adapter_config.json")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    there = (
        ""
        if base is None or not str(base).startswith(("/", ".")) or Path(base).exists()
        else ", which does not exist"
    )
    what = (
        f"this folder contains an adapter, without its base model ({base or 'which it does not name'}{there})"
    )
    hint = (
        f"{key.rpartition('.')[2]}: {base or 'the base model'}, with lora: {{adapter_name_or_path: {folder}}}"
    )
    return codes.MODEL_ADAPTER_FOLDER(what, key, str(folder), hint)


def of_a_run(folder: Path, key: str) -> Diagnostic | None:
    """Return an error for a folder that a run, ours or the Trainer's, writes beside or above models."""
    if any((folder / name).is_file() for name in ("model.safetensors", _INDEX)):
        return None
    run = folder.parent if folder.name == RunDir(folder).checkpoints.name else folder
    checkpoint = folder.parent if (folder.parent / _MANIFEST).is_file() else run
    if (checkpoint / _MANIFEST).is_file() or RunDir(run).plan_json.is_file():
        whole = not key.startswith("lora.") and bool([*checkpoint.glob(_ADAPTERS), *folder.glob(_ADAPTERS)])
        merge, then = " --merge" * whole, written(key, "DIR")
        hint = f"paceline export {quote(str(checkpoint))} --to DIR{merge}, then {then}"
        return codes.MODEL_RUN_FOLDER("this is a folder of a Paceline run", key, str(folder), hint)
    saved = [f.parent for f in folder.glob("checkpoint-*/*config.json") if f.name in _CONFIGS]
    newest = max(saved, key=lambda f: (len(f.name), f.name), default=None)
    if newest is None or (folder / "config.json").is_file():
        return None
    what = "this folder holds checkpoints of the Trainer, and no model itself"
    return codes.MODEL_RUN_FOLDER(what, key, str(folder), written(key, str(newest)))


def written(key: str, folder: str) -> str:
    """Return the YAML line that names a folder at a key."""
    option = key.rpartition(".")[2]
    return (
        f"{option}: {f'[{{name: model, options: {{model: {folder}}}}}]' if option == 'rewards' else folder}"
    )


def _weights(folder: Path, key: str) -> Iterator[Diagnostic]:
    index, whole = folder / _INDEX, folder / "model.safetensors"
    if whole.is_file():
        if wrong := damage(whole, key):
            yield wrong
    elif index.is_file():
        yield from _shards(folder, index, key)
    else:
        yield _no_weights(folder, key, _CONVERT)


def _shards(folder: Path, index: Path, key: str) -> Iterator[Diagnostic]:
    """Check that every shard named in the index exists and is complete."""
    try:
        text = read_text(index) if index.stat().st_size <= MAX_INDEX_BYTES else ""
        named = sorted({str(place) for place in json.loads(text)["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what, found = "the index of the weights cannot be read", f"{type(error).__name__}: {error}"
        yield codes.MODEL_WEIGHTS_INDEX(
            what, key, f"{index}: {found}"[:300], "download the folder's files again, completely"
        )
        return
    missing = [name for name in named if not (folder / name).is_file()]
    if missing:
        what = f"{len(missing)} of {len(named)} weight files listed in {_INDEX} are missing"
        yield codes.MODEL_MISSING_SHARDS(
            what, key, ", ".join(missing[:4]), "copy or download them again: hf download NAME --local-dir DIR"
        )
    for name in named:
        if name not in missing and (wrong := damage(folder / name, key)):
            yield wrong


def check_adapter_folder(name: str, key: str) -> list[Diagnostic]:
    """Return why an adapter's weights cannot be read; ``plan.adapter`` checks its ``adapter_config.json``."""
    folder = Path(name).expanduser()
    weights = folder / "adapter_model.safetensors"
    if not folder.is_dir():
        return []
    if special := special_files(folder):
        return [_special(folder, special, key)]
    if (pointers := pointers_in(folder, key)) is not None:
        return [pointers]
    if run := of_a_run(folder, key):
        return [run]
    if not weights.is_file():
        return [_no_weights(folder, key, _CONVERT_ADAPTER)]
    wrong = damage(weights, key)
    return [] if wrong is None else [wrong]


def check_adapter_base(name: str, model: str) -> Iterator[Diagnostic]:
    """Warn if an adapter says that it was trained on another model than ``model``; a moved folder, or a
    download of the hub's, has the same last name.
    """
    file = Path(name).expanduser() / "adapter_config.json"
    try:
        base = str(json.loads(read_text(file)).get("base_model_name_or_path") or "")
    except (OSError, ValueError, AttributeError):
        return  # reported elsewhere
    if not base or _last(base) == _last(model) or Path(base).expanduser().resolve() == Path(model).resolve():
        return
    yield codes.MODEL_ADAPTER_BASE("lora.adapter_name_or_path", f"{base} then, {model} now")


def _last(name: str) -> str:
    """Return the last part of a model's name, also of one in the hub's cache."""
    cached = re.search(r"models--[\w.-]+?--([\w.-]+)/snapshots/", name)
    return cached[1].lower() if cached else Path(name).name.lower()


def _no_weights(folder: Path, key: str, convert: str) -> Diagnostic:
    pickles = sorted(
        p.name for pattern in _PICKLES for p in folder.glob(pattern) if not p.name.startswith("training_args")
    )
    if pickles:
        line = convert.format(quote(str(folder)), quote(f"{folder}-safetensors"))
        hint = f"convert them once, where that code may run, and use the new folder: {line}"
        return codes.MODEL_PICKLED(key, ", ".join(pickles[:4]), hint=hint)
    inside = ", ".join(sorted(p.name for p in folder.iterdir())[:8])
    hint = (
        f"use a folder with model.safetensors, or {_INDEX} and its files; or set model.config"
        " instead of model.name_or_path, to train from scratch"
    )
    return codes.MODEL_NO_WEIGHTS(key, f"{folder}: {inside}", hint=hint)
