"""Write a Hugging Face folder: staged next to its destination until complete, then checked by loading."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.export.architecture import SCORES, gives_scores, trained_model_of, writes_text
from paceline.checkpoint.format.durable_files import sync_folder, write_fresh
from paceline.checkpoint.format.foreign_folders import ADAPTER_CONFIG
from paceline.checkpoint.format.manifest import folders_of
from paceline.checkpoint.format.safetensors_file import TensorEntry, write_tensors
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.format.verify_files import read_state
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.load.start_folder import path_of_run
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.files import MAX_CONFIG_BYTES, read_bytes
from paceline.core.json_types import Json, JsonObject
from paceline.core.rundir import RunDir
from paceline.models.special_tokens import listed

if TYPE_CHECKING:
    pass


DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
MAX_SHARD_BYTES = 5_000_000_000
GENERATION = "generation_config.json"
_PIECE = 1024 * 1024  # values

#: Each folder that an export writes has one of them
_OF_MODELS = ("config.json", ADAPTER_CONFIG, ".metadata", "*.gguf")


def check_sources(to: Path, checkpoint: Path) -> None:
    """Raise ConfigError if an export to ``to`` would replace its own sources: the checkpoint's run, or the
    base of its adapter.
    """
    adapter = checkpoint / "hf" / ADAPTER_CONFIG
    base = ""
    if adapter.is_file():
        config = parse_object(read_bytes(adapter), str(adapter), max_bytes=MAX_CONFIG_BYTES)
        base = str(config.get("base_model_name_or_path") or "")
        with suppress(CheckpointError):  # a base that is not there: the export says it, if it reads one
            base = path_of_run(base, read_state(checkpoint), checkpoint, "model.name_or_path")
    for path, name in ((checkpoint, "the checkpoint"), (Path(base), "the base model of the adapter")):
        if str(path) != "." and path.exists() and path.resolve().is_relative_to(to.resolve()):
            raise ConfigError(
                codes.EXPORT_DESTINATION(
                    f"{name} is there, which the export reads", "--to", str(to), "give another folder"
                )
            )


def check_destination(to: Path, overwrite: bool) -> None:
    """Raise ConfigError unless ``to`` is free, empty, or a folder that may be replaced."""
    if to.is_dir() and not any(to.iterdir()):
        return
    is_model = any(any(to.glob(name)) for name in _OF_MODELS) and not RunDir(to).exists()
    if overwrite and to.is_dir() and not is_model:
        raise ConfigError(
            codes.EXPORT_DESTINATION(
                "only the folder of a model is replaced, and this one holds something else",
                "--to",
                str(to),
                f"--to {to / 'model'}",
            )
        )
    if os.path.lexists(to) and not (overwrite and to.is_dir() and not to.is_symlink()):
        raise ConfigError(
            codes.EXPORT_DESTINATION(
                "the destination exists and is not empty"
                if to.is_dir()
                else "the destination is not a folder",
                "--to",
                str(to),
                "give another folder, or --overwrite to replace this one",
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
    source = tensor.contiguous()
    cast = source if source.dtype == dtype else torch.empty_like(source, dtype=dtype)
    # piece by piece: what torch compares and casts with would be a copy of a large tensor each
    pieces = (torch.split(values.view(-1), _PIECE) for values in (source, cast))
    for piece, converted in zip(*pieces, strict=True):
        if converted.dtype != piece.dtype:
            converted.copy_(piece)
        if not bool(torch.isfinite(converted).all()):
            raise _not_finite(path, name, tensor, dtype)
    return cast


def _not_finite(path: Path, name: str, tensor: Tensor, dtype: torch.dtype) -> CheckpointError:
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        problem, remedy = (
            f"'{name}' contains {bad} values that are not numbers: training had diverged",
            "export an earlier checkpoint",
        )
    else:
        problem = (
            f"'{name}' reaches {float(tensor.abs().max()):.3g}, which"
            f" {str(dtype).removeprefix('torch.')} cannot represent"
        )
        remedy = "use --dtype bfloat16 or float32"
    return CheckpointError(codes.EXPORT_NOT_FINITE(problem, str(path), hint=remedy))


def config_of(reader: CheckpointReader, dtype: str) -> JsonObject:
    """Return the saved ``config.json`` with the export's dtype.

    Private keys and the attention implementation are dropped: some have run code (CVE-2026-4372).
    """
    if "config.json" not in reader.side_files():
        raise CheckpointError(codes.EXPORT_NO_CONFIG(str(reader.path)))
    raw = reader.side_json("config.json")
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
    labels: JsonObject = {
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "pad_token_id": None if pad in ends else pad,
    }
    return {**config, **labels, "architectures": [SCORES]}


def write_side_files(stage: Path, reader: CheckpointReader, config: Mapping[str, Json], remote: bool) -> None:
    """Write ``config.json``, the generation config and the tokenizer's files; a model that scores texts
    writes none, so it has no generation config.
    """
    scores, names = gives_scores(config), reader.side_files()
    texts = writes_text(config)
    left_out = {"config.json", ADAPTER_CONFIG} | (set() if texts else {GENERATION})
    replace_json(stage / "config.json", config)
    write_kept(stage, {name: reader.side_file(name) for name in names if name not in left_out})
    if scores and GENERATION in names and not remote:
        ends = [*listed(_generation(reader).get("eos_token_id")), *closing(stage)]
        held = listed(config.get("pad_token_id"))
        if not held or held[0] in ends:
            replace_json(stage / "config.json", {**config, "pad_token_id": pad_apart(stage, ends)})
    elif GENERATION not in names and not remote and texts:
        from transformers import GenerationConfig

        GenerationConfig.from_model_config(trained_model_of(config).config).save_pretrained(str(stage))


def write_kept(stage: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder that is not published yet, with the folders in it that they need."""
    for folder in folders_of(files):
        (stage / folder).mkdir(exist_ok=True)
    for name, content in files.items():
        write_fresh(stage / name, [content])
    for folder in folders_of(files):
        sync_folder(stage / folder)


def _generation(reader: CheckpointReader) -> JsonObject:
    return reader.side_json(GENERATION) if GENERATION in reader.side_files() else {}


def in_shards(entries: Sequence[TensorEntry], max_shard_bytes: int) -> list[list[TensorEntry]]:
    """Return the tensors of each file of weights."""
    shards: list[list[TensorEntry]] = [[]]
    for entry in entries:
        if shards[-1] and sum(e.num_bytes for e in shards[-1]) + entry.num_bytes > max_shard_bytes:
            shards.append([])
        shards[-1].append(entry)
    return shards


def write_weights(stage: Path, entries: Sequence[TensorEntry], max_shard_bytes: int) -> None:
    """Write ``model.safetensors``, or shards of at most ``max_shard_bytes`` with the Hugging Face index.

    Tensors are loaded in the order of ``in_order`` of each of ``in_shards``.
    """
    shards = in_shards(entries, max_shard_bytes)
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
    """Inside, disable Transformers' progress bars."""
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


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
_MAX_BYTES = 64 << 20


def pad_apart(stage: Path, ends: Collection[int]) -> int | None:
    """Return a padding token that does not end a text, and set it in the folder's tokenizer. It is the
    tokenizer's own padding token, else one of its special tokens that no text ends with. Without one, return
    None and change nothing.
    """
    if (tokenizer := _tokenizer(stage)) is None:
        return None
    chosen = next((token for token in _candidates(tokenizer) if token not in ends), None)
    if chosen is not None and chosen != tokenizer.pad_token_id:
        for name in _SETTINGS:
            if (path := stage / name).is_file():
                settings = parse_object(path.read_bytes(), str(path), max_bytes=_MAX_BYTES)
                replace_json(path, {**settings, "pad_token": tokenizer.convert_ids_to_tokens(chosen)})
    return chosen


def closing(stage: Path) -> list[int]:
    """Return the token that the folder's tokenizer writes behind every text; empty if it writes none."""
    tokenizer = _tokenizer(stage)
    return [] if tokenizer is None else list(tokenizer("").input_ids)[-1:]


def _tokenizer(stage: Path) -> PreTrainedTokenizerBase | None:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(stage), local_files_only=True, trust_remote_code=False)
    except Exception:  # noqa: BLE001  (damaged files raise many types, and a class may need its own code)
        return None


def _candidates(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return candidate special tokens: the padding token, those that no chat template writes, the BOS."""
    written = json.dumps(tokenizer.chat_template or "", ensure_ascii=False)
    special = {
        index: token.content for index, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    standard = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id)
    unwritten = [index for index, text in special.items() if text not in written and index not in standard]
    return [candidate for candidate in (standard[0], *unwritten, *standard[1:]) if candidate is not None]


def replace_json(path: Path, values: Mapping[str, Json]) -> None:
    """Rewrite a JSON file of a folder that is not published yet."""
    path.unlink(missing_ok=True)
    write_fresh(path, [json.dumps(values, indent=2, ensure_ascii=False, sort_keys=True).encode() + b"\n"])
