"""Folders that a config names as models or adapters, and that are something else: a run, an adapter, a model
with another head. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from paceline.config.schema import Config
from paceline.config.sections.model import ModelSection
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.core.json_types import Json
from paceline.plan import codes
from paceline.plan.algorithms.role_models import key_of_model
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.model.files.folder_check import adapter_folder, of_a_run, written

_MAIN, _ADAPTER = "model.name_or_path", "lora.adapter_name_or_path"
_SCORES = "ForSequenceClassification"
_OF_TEXT = "name the language model that it was trained from, or another"
_WRITING = ("reference", "teacher")  # roles


def wrong_folders(config: Config) -> list[Diagnostic]:
    """Return an error for each folder that is not what its key asks for.

    Whatever else could be said of it (no weights, no tokenizer, …) follows from that.
    """
    spec, lora = algorithm_spec(config.training.algorithm), config.lora
    found: list[Diagnostic] = []
    if config.model.config is None and config.model.name_or_path:
        scalar = spec.head_outputs(config.training) if spec.scalar_head else 0
        found += _wrong_model(config.model.name_or_path, _MAIN, scalar, exactly="scores" in spec.outputs)
    for role in spec.named_roles():
        name = spec.model_named(config.training, role)
        if name is not None:
            key, scalar = key_of_model(config.training, role), int(role not in _WRITING)
            # what judges answers is looked at with the rewards
            found += _wrong_model(name, key, scalar, exactly=key.startswith(spec.key))
    if lora is not None and lora.adapter_name_or_path:
        found += _wrong_adapter(lora.adapter_name_or_path, spec.scalar_head)
    return list({(d.code, d.where): d for d in found}.values())


def _wrong_model(name: str, key: str, scalar: int, *, exactly: bool) -> Iterator[Diagnostic]:
    """Yield what is wrong with a model whose head gives ``scalar`` numbers a text (0: a language model)."""
    folder = Path(name).expanduser()
    if run := of_a_run(folder, key):
        yield run
    elif not folder.is_dir():
        return
    elif (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        if key == _MAIN:
            yield adapter_folder(folder, key)
        else:
            what = "this folder contains an adapter, without its base model"
            hint = (
                "merge it first: paceline export RUN --to DIR --merge, or peft's"
                f" merge_and_unload().save_pretrained(DIR), then {written(key, 'DIR')}"
            )
            yield codes.MODEL_ADAPTER_FOLDER(what, key, name, hint)
    else:
        yield from _other_head(folder / "config.json", name, key, scalar, exactly=exactly)


def classes_of_head(model: ModelSection) -> tuple[str, ...]:
    """Return the classes of a sequence classifier in a local folder, by number; empty for other models."""
    if model.config is not None or not model.name_or_path:
        return ()
    config = Path(model.name_or_path).expanduser() / "config.json"
    return _labels(config) if _score_classes(config) else ()


def _score_classes(config: Path) -> list[str]:
    kinds = _value(config, "architectures")
    return [str(kind) for kind in kinds if str(kind).endswith(_SCORES)] if isinstance(kinds, list) else []


def _labels(config: Path) -> tuple[str, ...]:
    labels = _value(config, "id2label")
    if not isinstance(labels, dict) or not labels:
        return ("LABEL_0", "LABEL_1")  # Transformers leaves out its default of two
    return tuple(str(labels[number]) for number in sorted(labels, key=int))


def _other_head(config: Path, name: str, key: str, scalar: int, *, exactly: bool) -> Iterator[Diagnostic]:
    classes = _score_classes(config)
    if not classes:
        return
    count = len(_labels(config))
    found = f"{name}: {classes[0]}, {count} label{'s' * (count != 1)}"
    if not scalar:
        what = "the model in this folder scores texts, and a language model is needed here"
        yield codes.MODEL_OTHER_HEAD(what, key, found, _OF_TEXT)
    elif exactly and count != scalar:
        what = "the model in this folder has several labels, and one number is needed here"
        hint = "name a model with one label, or the language model that it was trained from, for a new head"
        yield codes.MODEL_OTHER_HEAD(what, key, found, hint)


def _wrong_adapter(name: str, scalar: bool) -> Iterator[Diagnostic]:
    folder = Path(name).expanduser()
    if run := of_a_run(folder, _ADAPTER):
        yield run
        return
    if (
        folder.is_dir()
        and not (folder / "adapter_config.json").is_file()
        and (folder / "config.json").is_file()
    ):
        what = "this folder contains a complete model, and no adapter"
        hint = f"name_or_path: {name} under model:, without adapter_name_or_path"
        yield codes.MODEL_ADAPTER_FOLDER(what, _ADAPTER, name, hint)
        return
    kind = _value(folder / "adapter_config.json", "task_type")
    if kind == "SEQ_CLS" and not scalar:
        what = "this adapter is of a model that scores texts, and a language model's is needed here"
        yield codes.MODEL_OTHER_HEAD(
            what, _ADAPTER, f"{name}: task_type {kind}", "name a language model's adapter"
        )
    elif kind == "CAUSAL_LM" and scalar:
        what = "this adapter is of a language model, without the head that scores texts"
        hint = (
            "merge it: paceline export RUN --to DIR --merge (or peft's merge_and_unload), then"
            " name_or_path: DIR under model:, without adapter_name_or_path"
        )
        yield codes.MODEL_OTHER_HEAD(what, _ADAPTER, f"{name}: task_type {kind}", hint)


def _value(file: Path, key: str) -> Json:
    """Return the value of a key in a JSON file; None without one, or where the file's reader reports it."""
    try:
        found = json.loads(read_text(file))
    except (OSError, ValueError, ConfigError):
        return None
    return found.get(key) if isinstance(found, dict) else None
