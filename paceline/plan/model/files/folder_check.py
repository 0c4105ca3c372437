"""Check folders of models and adapters without loading them, by config, sizes and headers. No torch.

How a folder of sentence-transformers makes a text's vector, compared with how a run would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from paceline.config.schema import Config
from paceline.config.sections.algorithms.supervised import EmbeddingOptions
from paceline.config.sections.model import ModelSection
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.files import MAX_INDEX_BYTES, is_local_name, pointers_in, read_text, special_files
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.plan import codes
from paceline.plan.algorithms.spec import algorithm_spec, key_of_model
from paceline.plan.model.files.safetensors_headers import INDEX, damage
from paceline.plan.model.read_config import config_from_path

#: What only a checkpoint of ours has, and its adapter's config, from the checkpoint and from the run
_MANIFEST, _ADAPTERS = "manifest.json", "**/hf/adapter_config.json"
_CONFIGS = ("config.json", "adapter_config.json")
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
        above = folder.parent
        hint = (
            "give the folder that contains it" if above == Path(".") else f"{key.rpartition('.')[2]}: {above}"
        )
        return [codes.MODEL_NOT_A_FOLDER(key, name, hint=hint)]
    if not (folder / "config.json").is_file() and (folder / "adapter_config.json").is_file():
        return [adapter_folder(folder, key)]
    if wrong := _other_folder(folder, key):
        return [wrong]
    if (folder / "adapter_config.json").is_file():
        what = "this folder contains a model and an adapter, which Transformers would lay on it"
        hint = "merge it (merge_and_unload of peft), or move adapter_*.* to a folder of its own"
        return [codes.MODEL_ADAPTER_FOLDER(what, key, f"{folder}/adapter_config.json", hint)]
    try:
        config_from_path(folder)
    except ConfigError as error:
        return list(error.diagnostics)
    return list(_weights(folder, key))


def _other_folder(folder: Path, key: str) -> Diagnostic | None:
    """Return why a folder's files are not a model's: a run's, special ones, or pointers of Git LFS."""
    if run := of_a_run(folder, key):
        return run
    if special := special_files(folder):
        return codes.MODEL_SPECIAL_FILE(key, f"{folder}: {', '.join(special[:4])}")
    return pointers_in(folder, key)


def _not_there(folder: Path, name: str, key: str) -> Iterator[Diagnostic]:
    """Yield an error for a missing local path, or a missing name next to other model folders."""
    local = is_local_name(name) or _ADDRESS.match(name)
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
    siblings = f"{name}; in {folder.parent}: {', '.join(beside[:6]) or 'no models'}"
    yield codes.PLAN_MODEL_MISSING(
        "there is no such folder", key, siblings, "give an existing folder, or a hub name like org/model"
    )


def adapter_folder(folder: Path, key: str) -> Diagnostic:
    """Return the error for a folder that only holds an adapter, with its base as the remedy."""
    base = _value(folder / "adapter_config.json", "base_model_name_or_path")
    lost = base is not None and str(base).startswith(("/", ".")) and not Path(str(base)).exists()
    base_text = f"{base or 'which it does not name'}{', which does not exist' if lost else ''}"
    return codes.MODEL_ADAPTER_FOLDER(
        f"this folder contains an adapter, without its base model ({base_text})",
        key,
        str(folder),
        f"{key.rpartition('.')[2]}: {base or 'the base model'},"
        f" with lora: {{adapter_name_or_path: {folder}}}",
    )


def of_a_run(folder: Path, key: str) -> Diagnostic | None:
    """Return an error for a folder that a run, ours or the Trainer's, writes next to or above models."""
    if any((folder / name).is_file() for name in ("model.safetensors", INDEX)):
        return None
    run = folder.parent if folder.name == RunDir(folder).checkpoints.name else folder
    checkpoint = folder.parent if (folder.parent / _MANIFEST).is_file() else run
    if (checkpoint / _MANIFEST).is_file() or RunDir(run).plan_json.is_file():
        has_adapter = not key.startswith("lora.") and bool(
            [*checkpoint.glob(_ADAPTERS), *folder.glob(_ADAPTERS)]
        )
        merge, then = " --merge" * has_adapter, written(key, "DIR")
        return codes.MODEL_RUN_FOLDER(
            "this is a folder of a Paceline run",
            key,
            str(folder),
            f"paceline export {quote(str(checkpoint))} --to DIR{merge}, then {then}",
        )
    saved = [f.parent for f in folder.glob("checkpoint-*/*config.json") if f.name in _CONFIGS]
    newest = max(saved, key=lambda f: (len(f.name), f.name), default=None)
    if newest is None or (folder / "config.json").is_file():
        return None
    return codes.MODEL_RUN_FOLDER(
        "this folder holds checkpoints of the Trainer, and no model itself",
        key,
        str(folder),
        written(key, str(newest)),
    )


def written(key: str, folder: str) -> str:
    """Return the YAML line that names a folder at a key."""
    option = key.rpartition(".")[2]
    return (
        f"{option}: {f'[{{name: model, options: {{model: {folder}}}}}]' if option == 'rewards' else folder}"
    )


def _weights(folder: Path, key: str) -> Iterator[Diagnostic]:
    index, single = folder / INDEX, folder / "model.safetensors"
    if single.is_file():
        if wrong := damage(single, key):
            yield wrong
    elif index.is_file():
        yield from _shards(folder, index, key)
    else:
        yield _no_weights(folder, key, _CONVERT)


def _shards(folder: Path, index: Path, key: str) -> Iterator[Diagnostic]:
    """Check that every shard named in the index exists and is complete."""
    try:
        text = read_text(index) if index.stat().st_size <= MAX_INDEX_BYTES else ""
        shards = sorted({str(shard) for shard in json.loads(text)["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        yield codes.MODEL_WEIGHTS_INDEX(key, f"{index}: {reason}"[:300])
        return
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        yield codes.MODEL_MISSING_SHARDS(
            key, ", ".join(missing[:4]), missing=len(missing), named=len(shards), index=INDEX
        )
    for name in shards:
        if name not in missing and (wrong := damage(folder / name, key)):
            yield wrong


def check_adapter_folder(name: str, key: str) -> list[Diagnostic]:
    """Return why an adapter's weights cannot be read; ``plan.features.peft_settings`` checks its
    ``adapter_config.json``.
    """
    folder = Path(name).expanduser()
    weights = folder / "adapter_model.safetensors"
    if not folder.is_dir():
        return []
    wrong = _other_folder(folder, key) or (
        damage(weights, key) if weights.is_file() else _no_weights(folder, key, _CONVERT_ADAPTER)
    )
    return [] if wrong is None else [wrong]


def adapter_base(name: str) -> str:
    """Return the model that an adapter's folder names as its base; empty if it names none."""
    return str(_value(Path(name).expanduser() / "adapter_config.json", "base_model_name_or_path") or "")


def check_adapter_base(name: str, model: str) -> Iterator[Diagnostic]:
    """Warn if an adapter's config names another base than ``model``. A moved folder, or a download from the
    hub, has the same last name and gives no warning.
    """
    base = adapter_base(name)
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
        return codes.MODEL_PICKLED(
            key,
            ", ".join(pickles[:4]),
            hint=f"convert them once, where that code may run, and use the new folder: {line}",
        )
    inside = ", ".join(sorted(p.name for p in folder.iterdir())[:8])
    return codes.MODEL_NO_WEIGHTS(
        key,
        f"{folder}: {inside}",
        hint=f"use a folder with model.safetensors, or {INDEX} and its files; or set model.config"
        " instead of model.name_or_path, to train from scratch",
    )


_MAIN, _ADAPTER = "model.name_or_path", "lora.adapter_name_or_path"
_SCORES = "ForSequenceClassification"
_OF_TEXT = "name the language model that it was trained from, or another"
_WRITING = ("reference", "teacher")  # roles


def wrong_folders(config: Config) -> list[Diagnostic]:
    """Return an error for each folder of the wrong kind for its key.

    It also explains other findings about the folder (no weights, no tokenizer, …).
    """
    spec, lora = algorithm_spec(config.training.algorithm), config.lora
    problems: list[Diagnostic] = []
    if config.model.config is None and config.model.name_or_path:
        problems += _wrong_model(
            config.model.name_or_path,
            _MAIN,
            spec.head_outputs(config.training) if spec.scalar_head else 0,
            exactly="scores" in spec.outputs,
        )
    for role in spec.named_roles():
        name = spec.model_named(config.training, role)
        if name is not None:
            key = key_of_model(config.training, role)
            # what judges answers is looked at with the rewards
            problems += _wrong_model(name, key, int(role not in _WRITING), exactly=key.startswith(spec.key))
    if lora is not None and lora.adapter_name_or_path:
        problems += _wrong_adapter(lora.adapter_name_or_path, spec.scalar_head)
    return list({(d.code, d.where): d for d in problems}.values())


def _wrong_model(name: str, key: str, scalar: int, *, exactly: bool) -> Iterator[Diagnostic]:
    """Yield errors of a model whose head must give ``scalar`` numbers per text (0: a language model)."""
    folder = Path(name).expanduser()
    if run := of_a_run(folder, key):
        yield run
    elif not folder.is_dir():
        return
    elif (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        if key == _MAIN:
            yield adapter_folder(folder, key)
        else:
            yield codes.MODEL_ADAPTER_FOLDER(
                "this folder contains an adapter, without its base model",
                key,
                name,
                "merge it first: paceline export RUN --to DIR --merge, or peft's"
                f" merge_and_unload().save_pretrained(DIR), then {written(key, 'DIR')}",
            )
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
    labels = f"{name}: {classes[0]}, {count} label{'s' * (count != 1)}"
    if not scalar:
        yield codes.MODEL_OTHER_HEAD(
            "the model in this folder scores texts, and a language model is needed here",
            key,
            labels,
            _OF_TEXT,
        )
    elif exactly and count != scalar:
        yield codes.MODEL_OTHER_HEAD(
            "the model in this folder has several labels, and one number is needed here",
            key,
            labels,
            "name a model with one label, or the language model that it was trained from, for a new head",
        )


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
        yield codes.MODEL_ADAPTER_FOLDER(
            "this folder contains a complete model, and no adapter",
            _ADAPTER,
            name,
            f"name_or_path: {name} under model:, without adapter_name_or_path",
        )
        return
    kind = _value(folder / "adapter_config.json", "task_type")
    if kind == "SEQ_CLS" and not scalar:
        yield codes.MODEL_OTHER_HEAD(
            "this adapter is of a model that scores texts, and a language model's is needed here",
            _ADAPTER,
            f"{name}: task_type {kind}",
            "name a language model's adapter",
        )
    elif kind == "CAUSAL_LM" and scalar:
        yield codes.MODEL_OTHER_HEAD(
            "this adapter is of a language model, without the head that scores texts",
            _ADAPTER,
            f"{name}: task_type {kind}",
            "merge it: paceline export RUN --to DIR --merge (or peft's merge_and_unload), then"
            " name_or_path: DIR under model:, without adapter_name_or_path",
        )


def _value(file: Path, key: str) -> Json:
    """Return the value of a key in a JSON file; None without one, or if another check reports the file."""
    try:
        contents = json.loads(read_text(file))
    except (OSError, ValueError, ConfigError):
        return None
    return contents.get(key) if isinstance(contents, dict) else None


_KEY = "training.embedding"
#: Names of its versions → ours
_POOLINGS = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean", "lasttoken": "last"}


def check_pooling(config: Config) -> Iterator[Diagnostic]:
    """Yield embedding.folder: errors for what the config leaves to defaults, warnings for what it sets."""
    folder = Path(config.model.name_or_path or "").expanduser()
    modules = _read(folder / "modules.json")
    if config.model.config is not None or not isinstance(modules, list):
        return
    kinds = {str(as_object(m).get("type")).rsplit(".", 1)[-1]: str(as_object(m).get("path")) for m in modules}
    if "Pooling" not in kinds:
        return
    options = config.training.embedding or EmbeddingOptions()
    pooling = as_object(_read(folder / kinds["Pooling"] / "config.json") or {})
    modes = [_POOLINGS.get(name, name) for name in _modes(pooling)]
    made = {"pooling": "+".join(modes), "normalize": "Normalize" in kinds}
    for name, theirs in made.items():
        ours = getattr(options, name)
        if theirs in ("", ours):
            continue
        there, here = (str(value).lower() for value in (theirs, ours))
        known = name != "pooling" or there in _POOLINGS.values()
        yield codes.EMBEDDING_FOLDER(
            f"{_KEY}.{name}",
            f"{name}: {there} there, {here} here",
            hint=f"{name}: {there}"
            if known
            else f"{name}: {here}, to learn it anew: {there} is not supported",
            severity=Severity.WARNING if name in options.model_fields_set else Severity.ERROR,
        )
    about = as_object(_read(folder / "config_sentence_transformers.json") or {})
    for name, text in as_object(about.get("prompts") or {}).items():
        ours = {"query": config.data.query_prompt, "document": config.data.document_prompt}.get(name)
        if text and ours == "":
            quoted = json.dumps(text, ensure_ascii=False)
            yield codes.EMBEDDING_FOLDER(
                f"data.{name}_prompt",
                f"{quoted} there, none here",
                hint=f"{name}_prompt: {quoted}",
                severity=Severity.WARNING,
            )


def _modes(pooling: JsonObject) -> list[str]:
    """Return the modes of its Pooling's config, old or new."""
    if isinstance(mode := pooling.get("pooling_mode"), str):
        return mode.split("+")
    prefix = "pooling_mode_"
    return [n.removeprefix(prefix) for n, on in pooling.items() if n.startswith(prefix) and on is True]


def _read(file: Path) -> Json:
    """Return the file's JSON; None where it is missing or damaged."""
    try:
        parsed: Json = json.loads(read_text(file)) if file.is_file() else None
    except (OSError, ValueError):
        return None
    return parsed
