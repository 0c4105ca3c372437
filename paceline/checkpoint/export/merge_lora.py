"""An adapter merged into its base, tensor by tensor: the base is read from its files as it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.checkpoint import codes
from paceline.checkpoint.export.folder_reader import FolderReads
from paceline.checkpoint.export.hf_folder import finite
from paceline.checkpoint.export.peft_adapter import base_of
from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, as_number, as_object
from paceline.models.factory import HFModelFactory
from paceline.models.heads.sequence_classification import Classes
from paceline.models.loading.sharded_loading import FolderSlices
from paceline.models.lora.base_weights import Step, merging
from paceline.models.lora.lora import base_fingerprint
from paceline.models.module_tensors import persistent_buffers
from paceline.models.quantized_linear import packed_weights, rounded
from paceline.plan.plan import AdapterSpec, Quantization
from paceline.plan.plan_json import from_json
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Role
from paceline.protocols.shard import PARAM

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


def merged_entries(
    reader: CheckpointReader,
    role: str,
    config: Mapping[str, Json],
    trained: list[TensorEntry],
    dtype: torch.dtype,
    files: FolderReads,
) -> list[TensorEntry]:
    """Return the tensors of the full model, each read from the base's files (by ``files``) and merged when it
    is written. A base that is built from ``model.config``, or made from other tensors than
    its files have, is in memory as a whole.

    After 4-bit training the base is rounded to 4 bits and unpacked before the merge. Raises CheckpointError
    ``export.base_model`` if the base is not the one that was trained on, and ConfigError if it cannot be
    loaded.
    """
    saved = reader.state.get("adapter")
    if not isinstance(saved, dict):
        raise CheckpointError(codes.EXPORT_ADAPTER(str(reader.path), "no 'adapter' in its state"))
    if "config" not in reader.state:
        raise CheckpointError(
            codes.EXPORT_BASE_MODEL(
                "the adapter was another program's: which base weights it was trained on is not known",
                str(reader.path),
                hint="resume from it and merge a checkpoint of that run, or export the adapter without"
                " --merge",
            )
        )
    spec = from_json(AdapterSpec, saved)
    values = _Trained(reader, role, tuple(e.name for e in trained))
    hf, slices, wide = _base_model(reader, role, config, values)
    if slices is not None:
        slices = slices.read_by(files)
    # It must be the base that was trained on.
    base, fingerprint = base_of(reader), base_fingerprint(hf, slices)
    if base.get("fingerprint") and fingerprint != base["fingerprint"]:
        raise CheckpointError(
            codes.EXPORT_BASE_MODEL(
                "the base weights differ from those that the adapter was trained on",
                str(base.get("name_or_path") or "model.config"),
                f"fingerprint {str(fingerprint)[:12]}, trained on {str(base['fingerprint'])[:12]}",
                "use the exact revision it was trained on; or export the adapter without --merge",
            )
        )
    try:
        steps = merging(hf, spec, values)
    except (KeyError, IndexError, AttributeError) as error:
        raise CheckpointError(_misfit(reader, error)) from error
    packed = frozenset(packed_weights(hf) if spec.quantization is not None else ())
    entries = []
    for name, tensor in (*hf.named_parameters(), *persistent_buffers(hf)):
        kept = dtype if tensor.is_floating_point() else tensor.dtype
        rounds = spec.quantization if name in packed else None
        load = _Merged(name, tensor, slices, wide, rounds, tuple(steps.get(name, ())), values, kept)
        entries.append(TensorEntry(name, kept, tuple(tensor.shape), load))
    return entries


@dataclass(frozen=True)
class _Trained(Mapping[str, Tensor]):
    """The tensors of the adapter's checkpoint, each read when it is asked for."""

    reader: CheckpointReader
    role: str
    names: tuple[str, ...]

    def __getitem__(self, name: str) -> Tensor:
        return self.reader.read(self.role, name, PARAM)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class _Merged:
    """Makes one tensor of the full model when it is called.

    ``tensor``: the base's, or its place on meta; ``wide``: the dtype to merge in; ``rounds``: how the base's
    weight was packed in training.
    """

    name: str
    tensor: Tensor
    slices: FolderSlices | None
    wide: torch.dtype
    rounds: Quantization | None
    steps: tuple[Step, ...]
    trained: _Trained
    dtype: torch.dtype

    @torch.no_grad()
    def __call__(self) -> Tensor:
        path = self.trained.reader.path
        value = self._base()
        if self.rounds is not None:
            value = rounded(value, self.rounds)
        try:
            for step in self.steps:
                step(value, self.trained)
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(_misfit(self.trained.reader, error)) from error
        return finite(value, self.dtype, path, self.name)

    def _base(self) -> Tensor:
        """Return the base's value, in memory that may be changed."""
        if self.slices is None or not self.slices.has(self.name):
            held = self.tensor.detach()
            return held.clone() if self.steps else held
        read = self.slices.read(self.name, (0,) * self.tensor.ndim, self.tensor.shape)
        return read.to(self.wide if isinstance(self.tensor, nn.Parameter) else self.tensor.dtype)


def _base_model(
    reader: CheckpointReader, role: str, config: Mapping[str, Json], trained: _Trained
) -> tuple[HFModel, FolderSlices | None, torch.dtype]:
    """Return the base, with where its files have its parameters if these are on meta, and the dtype to merge
    in: that of the trained weights.
    """
    wide = any(reader.dtype(role, name, PARAM) == torch.float64 for name in trained)
    master = torch.float64 if wide else torch.float32
    run = Config.from_json(as_object(reader.state["config"]))
    rows = (as_object(config.get("text_config")) or config).get("vocab_size")  # None: the class's own
    build = HFModelFactory(
        run.model.model_copy(update={"trust_remote_code": False}),  # it must not enable remote code
        role=Role(role),
        vocab_size=None if rows is None else int(as_number(rows)),
        seed=run.training.seed,
        master_dtype=master,
        classes=Classes.read(Role(role), config),
    )
    root = build(BuildOptions(device=torch.device("cpu"), fused=False, by_slices=True))
    return root.hf, root.slices if isinstance(root.slices, FolderSlices) else None, master


def _misfit(reader: CheckpointReader, error: Exception) -> Diagnostic:
    return codes.EXPORT_TENSORS("the adapter does not fit its base model", str(reader.path), str(error)[:300])
