"""An exported folder is opened again and compared with the checkpoint before it gets its name.

A small model is loaded as a user would load it. For a larger one Transformers checks every name and shape on
the meta device. The check then reads the values from the files a piece at a time, as the start of a training
does. So its memory does not grow with the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.export.architecture import auto_of, listed_wrong, whole_of, writes_text
from paceline.checkpoint.export.hf_folder import without_progress
from paceline.checkpoint.export.untrained_tensors import FolderReads, TensorBytes, places_of
from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject
from paceline.models.loading.folder_tensors import folder_tensors
from paceline.models.loading.loading_report import account
from paceline.models.loading.multimodal import WholeModel, class_of_whole
from paceline.models.loading.sharded_loading import FolderSlices, folder_slices

if TYPE_CHECKING:
    from collections.abc import Collection

    from transformers import PreTrainedModel

    _Loaded = Mapping[str, Collection[str | tuple[str, ...]]]  # ``from_pretrained``'s lists of keys

LOADED_WHOLE = 512 * 2**20  # bytes of a model that is loaded back as a whole
PIECE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class ExportedTensors:
    """The expected tensors of a folder.

    skeleton  the model that was trained, on meta
    trained   its tensors, under its names
    saved     the same, under the names of the class that loads the folder
    released  the corresponding tensors in the folder's files
    carried   tensors copied from another folder, which the class may not have
    vision    the model was trained with its tower
    """

    skeleton: PreTrainedModel
    trained: Sequence[TensorEntry]
    saved: Sequence[TensorEntry]
    released: Sequence[TensorEntry]
    carried: Sequence[TensorEntry] = ()
    vision: bool = False

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.saved)


def check_load(stage: Path, exported: ExportedTensors, where: Path) -> None:
    """Load the folder, without remote code, and compare every tensor with the checkpoint ``where``; as a
    whole up to LOADED_WHOLE. Raises CheckpointError ``export.load_check``.
    """
    config: JsonObject = json.loads((stage / "config.json").read_text("utf-8"))
    composite, in_parts = whole_of(config, exported.vision), exported.num_bytes > LOADED_WHOLE
    auto = auto_of(config, exported.vision)
    auto = auto if composite is None else class_of_whole(composite.skeleton.config)
    model, info = _load_quietly(stage, auto, on_meta=in_parts)
    places = places_of(stage, stage)
    wrong = {
        key: sorted(map(str, info.get(key) or ()))
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
    }
    if wrong["unexpected_keys"]:
        beside = set(account(model, places).carried)
        wrong["unexpected_keys"] = sorted(beside - {e.name for e in exported.carried})
    with FolderReads() as files:
        if in_parts:
            if (slices := _slices(stage, exported, composite)) is None:  # a parameter is made in another way
                wrong["different"] = different_as_stored(exported.released, places, files)
            else:
                slices = slices.read_by(files)
                wrong["different"] = [e.name for e in exported.trained if not _same_in_parts(e, slices)]
        else:
            loaded = dict(model.named_parameters()) | dict(model.named_buffers())
            wrong["different"] = [
                e.name
                for e in exported.saved
                if e.name not in loaded or not torch.equal(loaded[e.name], e.load())
            ]
        wrong["different"] += different_as_stored(exported.carried, places, files)
    if any(wrong.values()):
        raise CheckpointError(
            codes.EXPORT_LOAD_CHECK(
                "Transformers loads other weights than were written; the export was removed",
                str(where),
                listed_wrong(wrong),
            )
        )


def different_as_stored(
    entries: Sequence[TensorEntry], places: Mapping[str, TensorBytes], files: FolderReads
) -> list[str]:
    """Return the names of ``entries`` that are not at their ``places``, bit for bit."""

    def same(entry: TensorEntry) -> bool:
        stored_at = places.get(entry.name)
        if stored_at is None or (stored_at.slot.dtype, stored_at.slot.shape) != (entry.dtype, entry.shape):
            return False
        stored = files.slice_of(stored_at.file, entry.name)
        return all(
            _equal(stored[part] if part else stored[()], values) for part, values in _pieces(entry.load())
        )

    return [entry.name for entry in entries if not same(entry)]


def _same_in_parts(entry: TensorEntry, slices: FolderSlices) -> bool:
    """Whether a model that reads its parameters from the files would get this tensor."""
    if not slices.has(entry.name):
        return False
    for part, values in _pieces(entry.load()):
        loaded = slices.read(
            entry.name, [p.start for p in part] + [0] * (values.ndim - len(part)), values.shape
        )
        if loaded.dtype != values.dtype or not _equal(loaded, values):
            return False
    return True


def _slices(stage: Path, exported: ExportedTensors, composite: WholeModel | None) -> FolderSlices | None:
    config = json.loads((stage / "config.json").read_text("utf-8"))
    tensors = folder_tensors(
        exported.skeleton,
        str(stage),
        None,
        fresh=frozenset(),
        leaves_out=not writes_text(config),
        whole=composite,
    )
    if tensors is None:
        return None
    converting = None if composite is None else composite.skeleton
    slices = folder_slices(exported.skeleton, tensors, converting=converting)
    return slices if isinstance(slices, FolderSlices) else None


def _pieces(tensor: Tensor) -> Iterator[tuple[tuple[slice, ...], Tensor]]:
    """Yield a tensor's rows, some at a time: (where, values); a scalar's place is ()."""
    if tensor.ndim == 0:
        yield (), tensor
        return
    rows = max(1, PIECE_BYTES // max(1, tensor[:1].nbytes))
    for first in range(0, tensor.shape[0], rows):
        part = tensor[first : first + rows]
        yield (slice(first, first + len(part)),), part


def _equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one dtype have the same bits: a copied tensor may hold NaN."""
    first, second = first.contiguous().view(-1), second.contiguous().view(-1)
    return bool(torch.equal(first.view(torch.uint8), second.view(torch.uint8)))


def _load_quietly(folder: Path, auto: Any, on_meta: bool) -> tuple[PreTrainedModel, _Loaded]:
    """Call ``from_pretrained`` without its progress bar; return the model and the loading info."""
    with without_progress():
        model, info = auto.from_pretrained(
            str(folder),
            dtype="auto",
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            device_map={"": "meta"} if on_meta else None,
        )
    return model, info
