"""Write a Hugging Face folder: staged next to its destination until complete, then checked by loading."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.export.score_padding import pad_apart, replace_json
from paceline.checkpoint.format.durable_files import sync_folder, write_fresh
from paceline.checkpoint.format.manifest import folders_of
from paceline.checkpoint.format.safetensors_file import TensorEntry, write_tensors
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.files import MAX_CONFIG_BYTES, read_bytes
from paceline.core.json_types import Json, JsonObject
from paceline.core.rundir import RunDir
from paceline.models.loading.multimodal import WholeModel, whole_model
from paceline.models.module_tensors import persistent_buffers
from paceline.models.special_tokens import listed
from paceline.plan.model.family import composite_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.auto.auto_factory import _BaseAutoModelClass


DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
MAX_SHARD_BYTES = 5_000_000_000
GENERATION = "generation_config.json"
ADAPTER_CONFIG = "adapter_config.json"  # next to a model Transformers would look for adapter weights
SCORES = "ForSequenceClassification"  # suffix of class names that output one score per text
_PIECE = 1024 * 1024  # values

#: Each folder that an export writes has one of them
_OF_MODELS = ("config.json", ADAPTER_CONFIG, ".metadata", "*.gguf")


def check_sources(to: Path, checkpoint: Path) -> None:
    """Raise ConfigError if an export to ``to`` would replace what it reads: the checkpoint's run, or the base
    of its adapter.
    """
    adapter = checkpoint / "hf" / ADAPTER_CONFIG
    base = ""
    if adapter.is_file():
        config = parse_object(read_bytes(adapter), str(adapter), max_bytes=MAX_CONFIG_BYTES)
        base = str(config.get("base_model_name_or_path") or "")
    for path, name in ((checkpoint, "the checkpoint"), (Path(base), "the base model of the adapter")):
        if str(path) != "." and path.exists() and path.resolve().is_relative_to(to.resolve()):
            what, hint = f"{name} is there, which the export reads", "give another folder"
            raise ConfigError(codes.EXPORT_DESTINATION(what, "--to", str(to), hint))


def check_destination(to: Path, overwrite: bool) -> None:
    """Raise ConfigError unless ``to`` is free, empty, or a folder that may be replaced."""
    if to.is_dir() and not any(to.iterdir()):
        return
    is_model = any(any(to.glob(name)) for name in _OF_MODELS) and not RunDir(to).exists()
    if overwrite and to.is_dir() and not is_model:
        what = "only the folder of a model is replaced, and this one holds something else"
        raise ConfigError(codes.EXPORT_DESTINATION(what, "--to", str(to), f"--to {to / 'model'}"))
    if os.path.lexists(to) and not (overwrite and to.is_dir() and not to.is_symlink()):
        what = "the destination exists and is not empty" if to.is_dir() else "the destination is not a folder"
        raise ConfigError(
            codes.EXPORT_DESTINATION(
                what, "--to", str(to), "give another folder, or --overwrite to replace this one"
            )
        )


@contextmanager
def staged(to: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a folder next to ``to`` that is renamed to ``to`` at the end, or removed on an error."""
    stage = to.with_name(f".{to.name}.export-{os.urandom(4).hex()}")
    old = stage.with_name(f"{stage.name}-old")
    os.mkdir(stage)
    try:
        yield stage
        sync_folder(stage)
        if overwrite and to.is_dir():
            os.rename(to, old)
        os.rename(stage, to)
        sync_folder(to.parent)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if old.is_dir() and not to.is_dir():
            os.rename(old, to)
        shutil.rmtree(old, ignore_errors=True)


def finite(tensor: Tensor, dtype: torch.dtype, path: Path, name: str) -> Tensor:
    """Return ``tensor`` in ``dtype`` (integers unchanged).

    Raises CheckpointError if a value is not finite.
    """
    if not tensor.is_floating_point():
        return tensor
    whole = tensor.contiguous()
    cast = whole if whole.dtype == dtype else torch.empty_like(whole, dtype=dtype)
    # piece by piece: what torch compares and casts with would be a copy of a large tensor each
    pieces = (torch.split(one.view(-1), _PIECE) for one in (whole, cast))
    for piece, made in zip(*pieces, strict=True):
        if made.dtype != piece.dtype:
            made.copy_(piece)
        if not bool(torch.isfinite(made).all()):
            raise _not_finite(path, name, tensor, dtype)
    return cast


def _not_finite(path: Path, name: str, tensor: Tensor, dtype: torch.dtype) -> CheckpointError:
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        what, hint = (
            f"'{name}' contains {bad} values that are not numbers: training had diverged",
            "export an earlier checkpoint",
        )
    else:
        what = (
            f"'{name}' reaches {float(tensor.abs().max()):.3g}, which"
            f" {str(dtype).removeprefix('torch.')} cannot represent"
        )
        hint = "use --dtype bfloat16 or float32"
    return CheckpointError(codes.EXPORT_NOT_FINITE(what, str(path), hint=hint))


def config_of(reader: CheckpointReader, dtype: str) -> JsonObject:
    """Return the saved ``config.json`` with the export's dtype.

    Private keys and the attention implementation are dropped: some have run code (CVE-2026-4372).
    """
    if "config.json" not in reader.side_files():
        raise CheckpointError(codes.EXPORT_NO_CONFIG(str(reader.path)))
    raw = parse_object(
        reader.side_file("config.json"), str(reader.path / "hf" / "config.json"), max_bytes=MAX_CONFIG_BYTES
    )
    return {
        k: v
        for k, v in raw.items()
        if not k.startswith("_") and k not in ("torch_dtype", "attn_implementation")
    } | {"dtype": dtype}


def scoring(config: Mapping[str, Json], reader: CheckpointReader) -> JsonObject:
    """Return the ``config.json`` of the same trunk with a score head.

    For a value model, whose run saved its policy's config. A padding token that also ends answers is left
    out, as for a reward model (``score_padding``).
    """
    generation = _generation(reader)
    pad, ends = generation.get("pad_token_id"), listed(generation.get("eos_token_id"))
    one: JsonObject = {
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "pad_token_id": None if pad in ends else pad,
    }
    return {**config, **one, "architectures": [SCORES]}


def is_known(config: Mapping[str, Json]) -> bool:
    """Whether Transformers has a causal language model of this type, alone or within a composite; others
    need remote code.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or composite_of(config) is not None


def auto_of(config: Mapping[str, Json]) -> type[_BaseAutoModelClass]:
    """Return the Auto class that loads this config; a reward model's names sequence classification."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    return AutoModelForSequenceClassification if gives_scores(config) else AutoModelForCausalLM


def gives_scores(config: Mapping[str, Json]) -> bool:
    """Whether a config names a class with a score head in place of the language-model head."""
    named = config.get("architectures")
    return isinstance(named, list) and any(str(name).endswith(SCORES) for name in named)


def text_model_of(config: Mapping[str, Json]) -> PreTrainedModel:
    """Build the architecture, or the language model within it, on the meta device."""
    from transformers import AutoConfig

    plain = {
        k: _plain(v) for k, v in config.items() if k not in ("model_type", "auto_map", "transformers_version")
    }
    made = AutoConfig.for_model(str(config["model_type"]), **plain)
    if (whole := whole_model(made)) is not None:
        made = whole.text
    with torch.device("meta"):
        return auto_of(config).from_config(made)  # type: ignore[no-untyped-call]


def whole_of(config: Mapping[str, Json]) -> WholeModel | None:
    """Return the model with all parts of a composite's config; None for a language model's own."""
    from transformers import AutoConfig

    if composite_of(config) is None:
        return None
    plain = {k: _plain(v) for k, v in config.items() if k not in ("model_type", "transformers_version")}
    return whole_model(AutoConfig.for_model(str(config["model_type"]), **plain))


def _plain(value: Json) -> Json:
    """Decode a ``config.json`` value as Transformers does: ``{"__float__": "Infinity"}`` is a float."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return (
            float(str(value["__float__"]))
            if set(value) == {"__float__"}
            else {k: _plain(v) for k, v in value.items()}
        )
    return value


def check_names(config: JsonObject, shapes: Mapping[str, tuple[int, ...]], where: Path) -> PreTrainedModel:
    """Check that the tensors are exactly those of the architecture, in their shapes (tied ones once).

    Also sets ``architectures`` in ``config``. Returns the model on the meta device. Raises CheckpointError.
    """
    if not is_known(config):
        what = "Transformers has no causal language model of this type"
        raise CheckpointError(
            codes.EXPORT_MODEL_TYPE(what, str(where), f"model_type: {config.get('model_type')!r}")
        )
    model = text_model_of(config)
    if composite_of(config) is None:  # a composite's names the class with all parts
        config["architectures"] = [type(model).__name__]
    expected = {n: tuple(t.shape) for n, t in (*model.state_dict().items(), *model.named_buffers())}
    needed = {n for n, _ in (*model.named_parameters(), *persistent_buffers(model))}
    wrong = {
        "missing": sorted(needed - set(shapes)),
        "unknown": sorted(set(shapes) - set(expected)),
        "have another shape": sorted(
            n for n, shape in shapes.items() if n in expected and shape != expected[n]
        ),
    }
    if any(wrong.values()):
        what = "the checkpoint's tensors do not match its config.json"
        raise CheckpointError(codes.EXPORT_TENSORS(what, str(where), listed_wrong(wrong)))
    return model


def listed_wrong(wrong: Mapping[str, list[str]]) -> str:
    return "; ".join(
        f"{word}: {', '.join(map(str, some[:5]))}{' …' if len(some) > 5 else ''}"
        for word, some in wrong.items()
        if some
    )


def write_side_files(stage: Path, reader: CheckpointReader, config: Mapping[str, Json], remote: bool) -> None:
    """Write ``config.json``, the generation config and the tokenizer's files; a model that scores texts
    writes none, so it has no generation config.
    """
    scores, names = gives_scores(config), reader.side_files()
    left_out = {"config.json", ADAPTER_CONFIG} | ({GENERATION} if scores else set())
    replace_json(stage / "config.json", config)
    write_kept(stage, {name: reader.side_file(name) for name in names if name not in left_out})
    if scores and GENERATION in names and not remote:
        ends = listed(_generation(reader).get("eos_token_id"))
        held = listed(config.get("pad_token_id"))
        if not held or held[0] in ends:
            replace_json(stage / "config.json", {**config, "pad_token_id": pad_apart(stage, ends)})
    elif GENERATION not in names and not remote and not scores:
        from transformers import GenerationConfig

        GenerationConfig.from_model_config(text_model_of(config).config).save_pretrained(str(stage))


def write_kept(stage: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder that is not published yet, with the folders in it that they need."""
    for folder in folders_of(files):
        (stage / folder).mkdir(exist_ok=True)
    for name, content in files.items():
        write_fresh(stage / name, [content])
    for folder in folders_of(files):
        sync_folder(stage / folder)


def _generation(reader: CheckpointReader) -> JsonObject:
    if GENERATION not in reader.side_files():
        return {}
    return parse_object(reader.side_file(GENERATION), GENERATION, max_bytes=MAX_CONFIG_BYTES)


def write_weights(stage: Path, entries: list[TensorEntry], max_shard_bytes: int) -> None:
    """Write ``model.safetensors``, or shards of at most ``max_shard_bytes`` with the Hugging Face index."""
    shards: list[list[TensorEntry]] = [[]]
    for entry in entries:
        if shards[-1] and sum(e.num_bytes for e in shards[-1]) + entry.num_bytes > max_shard_bytes:
            shards.append([])
        shards[-1].append(entry)
    if len(shards) == 1:
        write_tensors(stage / "model.safetensors", shards[0], {"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_tensors(stage / name, shard, {"format": "pt"})
        weight_map |= {e.name: name for e in shard}
    index = {
        "metadata": {"total_size": sum(e.num_bytes for e in entries)},
        "weight_map": dict(sorted(weight_map.items())),
    }
    write_fresh(stage / "model.safetensors.index.json", [json.dumps(index, indent=2).encode() + b"\n"])


@contextmanager
def without_progress() -> Iterator[None]:
    """No progress bars of Transformers inside."""
    from transformers.utils import logging

    switch: Callable[[], None] = logging.disable_progress_bar
    back: Callable[[], None] = logging.enable_progress_bar
    shown = logging.is_progress_bar_enabled()
    switch()
    try:
        yield
    finally:
        if shown:
            back()
