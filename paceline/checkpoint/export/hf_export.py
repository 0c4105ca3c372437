"""Export a checkpoint as a Hugging Face folder: written tensor by tensor, loaded back, then renamed.

An adapter is merged into its base tensor by tensor: the base is read from its files as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.checkpoint import codes
from paceline.checkpoint.export.architecture import (
    check_names,
    gives_scores,
    is_known,
    whole_of,
    with_tower,
    writes_text,
)
from paceline.checkpoint.export.exporters import Exporters, run_exporters
from paceline.checkpoint.export.gguf.writer import check_gguf, write_gguf
from paceline.checkpoint.export.hf_folder import (
    DTYPES,
    MAX_SHARD_BYTES,
    check_destination,
    check_sources,
    config_of,
    finite,
    scoring,
    staged,
    write_side_files,
    write_weights,
)
from paceline.checkpoint.export.hf_tensor_names import hub_entries
from paceline.checkpoint.export.peft_adapter import (
    adapter_entries,
    base_of,
    check_adapter,
    is_adapter,
    names_in_whole,
    write_adapter_files,
)
from paceline.checkpoint.export.reload_check import ExportedTensors, check_load
from paceline.checkpoint.export.sentence_transformers import write_retrieval_files
from paceline.checkpoint.export.untrained_tensors import FolderReads, carried_entries, carried_files
from paceline.checkpoint.format.durable_files import named_errors, need_space, write_fresh
from paceline.checkpoint.format.safetensors_file import TensorEntry, write_tensors
from paceline.checkpoint.format.tensor_index import TensorName
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.load.start_folder import model_of_run
from paceline.checkpoint.save.retention import being_read
from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.json_types import Json, JsonObject, as_number, as_object
from paceline.models.factory import HFModelFactory
from paceline.models.heads.sequence_classification import Classes
from paceline.models.loading.sharded_loading import FolderSlices
from paceline.models.lora.base_weights import Step, merging
from paceline.models.lora.lora import base_fingerprint
from paceline.models.lora.names import WEIGHTS
from paceline.models.module_tensors import persistent_buffers
from paceline.models.quantized_linear import packed_weights, rounded
from paceline.plan.plan import AdapterSpec, Quantization
from paceline.plan.plan_json import from_json
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Role
from paceline.protocols.shard import BUFFER, PARAM

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
    is written. A base is held whole in memory if it is built from ``model.config``, or if its parameters are
    not its files' tensors.

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
    """The tensors of the adapter's checkpoint, each read on demand."""

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
    rows = (as_object(config.get("text_config")) or config).get("vocab_size")  # None: the class's own
    build = HFModelFactory(
        model_of_run(reader.state, reader.path),
        role=Role(role),
        vocab_size=None if rows is None else int(as_number(rows)),
        seed=Config.from_json(as_object(reader.state["config"])).training.seed,
        master_dtype=master,
        classes=Classes.read(Role(role), config),
        vision=with_tower(reader.state),
    )
    root = build(BuildOptions(device=torch.device("cpu"), fused=False, by_slices=True))
    return root.hf, root.slices if isinstance(root.slices, FolderSlices) else None, master


def _misfit(reader: CheckpointReader, error: Exception) -> Diagnostic:
    return codes.EXPORT_TENSORS("the adapter does not fit its base model", str(reader.path), str(error)[:300])


NO_EXPORTERS = Exporters()


@dataclass(frozen=True)
class ExportReport:
    """The result of an export: ``model``, ``adapter`` or ``merged model``, and whether it was loaded back."""

    path: Path
    step: int
    dtype: str
    num_tensors: int
    num_parameters: int
    num_bytes: int
    files: tuple[str, ...]
    load_checked: bool
    kind: str = "model"
    num_carried: int = 0  # tensors copied unchanged from the model that the run started from
    base_bits: int = 0  # of the quantised base, dequantised and then merged into; 0 if it was not quantised
    init: str = ""  # of an adapter that began with a part of the base weights: pissa or olora
    vision: bool = False  # trained with its vision tower


def export_hf(
    checkpoint: Path,
    to: Path,
    dtype: str = "float32",
    *,
    role: str = "policy",
    overwrite: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    load_back: bool = True,
    merge: bool = False,
    exporters: Exporters = NO_EXPORTERS,
    verified: bool = False,
    opened: Callable[[Path], CheckpointReader] | None = None,
) -> ExportReport:
    """Export the model of ``role`` as a folder that ``from_pretrained`` loads.

    The class is ``AutoModelForCausalLM``, for a reward or value model ``AutoModelForSequenceClassification``.
    Memory holds one tensor at a time, and the tensors that it is made from. Untrained tensors are copied from
    the model that the run started from. The checkpoint of an adapter becomes a folder that
    ``PeftModel.from_pretrained`` loads onto its base; with ``merge`` a full model. ``exporters`` write
    further files into the folder.

    ``verified``: the checkpoint's hashes were just compared, so skip that; ``opened`` opens it, alone or
    averaged with others. Every number must be finite in ``dtype``, and the tensors must be exactly those of
    the architecture. ``load_back`` opens the folder again and compares it with the checkpoint
    (``reload_check``). ``to`` appears complete or not at all. Raises ConfigError (destination, dtype) and
    CheckpointError.
    """
    if dtype not in DTYPES:
        raise ConfigError(codes.EXPORT_DTYPE("--dtype", dtype, hint=", ".join(DTYPES)))
    check_sources(to, checkpoint)
    check_destination(to, overwrite)
    with (
        being_read(checkpoint),
        (opened or partial(CheckpointReader, verify=not verified))(checkpoint) as reader,
        FolderReads() as files,
        named_errors(to, what="the export cannot be written"),
    ):
        role, kind = _role(reader, role), "model"
        if is_adapter(reader):
            kind = "merged model" if merge else "adapter"
        content = (
            _of_adapter(reader, role, dtype)
            if kind == "adapter"
            else _of_model(reader, role, dtype, checkpoint, files)
        )
        if exporters.gguf:
            check_gguf(config_of(reader, dtype), is_adapter=kind == "adapter")
        checked = load_back and not content.remote
        to.parent.mkdir(parents=True, exist_ok=True)
        entries, num_carried = content.entries, len(content.carried)
        need_space(to.parent, sum(entry.num_bytes for entry in (*entries, *content.carried)))
        with staged(to, overwrite) as stage:
            content.fill(stage, max_shard_bytes, checkpoint if checked else None)
            write_retrieval_files(stage, reader)
            sizes = _run_exporters(exporters, stage, dtype)
        count, size = sum(prod(entry.shape) for entry in entries), sum(sizes.values())
        about, names = (*_about_adapter(reader.state, kind), with_tower(reader.state)), tuple(sorted(sizes))
        return ExportReport(
            to, reader.step, dtype, len(entries), count, size, names, checked, kind, num_carried, *about
        )


def _about_adapter(state: JsonObject, kind: str) -> tuple[int, str]:
    """Return the bits of a merged adapter's quantised base, and how the adapter was initialised."""
    adapter = as_object(state.get("adapter"))
    bits = as_object(adapter.get("quantization")).get("bits")
    merged = bits if kind == "merged model" and isinstance(bits, int) else 0
    return merged, str(adapter.get("init_lora_weights") or "") if kind == "adapter" else ""


def _run_exporters(exporters: Exporters, stage: Path, dtype: str) -> dict[str, int]:
    """Write further files; return the bytes of all files by name."""
    if exporters.gguf:
        write_gguf(stage, DTYPES[dtype])
    run_exporters(exporters.own, stage)
    files = (path for path in stage.rglob("*") if path.is_file())
    return {path.relative_to(stage).as_posix(): path.stat().st_size for path in files}


@dataclass(frozen=True)
class _Content:
    """The content of an export, chosen and checked. ``fill`` gets a folder, the maximum bytes of a weight
    file, and the checkpoint to compare the result with (None: no comparison). ``remote``: the class comes
    from the hub and is not loaded.
    """

    entries: Sequence[TensorEntry]
    fill: Callable[[Path, int, Path | None], None]
    carried: Sequence[TensorEntry] = ()
    remote: bool = False


def _of_adapter(reader: CheckpointReader, role: str, dtype: str) -> _Content:
    """Return an adapter's own tensors, for peft."""
    entries, part = _entries(reader, role, DTYPES[dtype]), names_in_whole(reader)
    trained, entries = [e.name for e in entries], adapter_entries(reader, entries, part)

    def fill(stage: Path, max_shard_bytes: int, against: Path | None) -> None:
        write_adapter_files(stage, reader=reader, trained=trained, names=part)
        write_tensors(stage / WEIGHTS, entries, {"format": "pt"})
        if against is not None:
            check_adapter(stage, entries, reader)

    return _Content(entries, fill)


def _of_model(
    reader: CheckpointReader, role: str, dtype: str, checkpoint: Path, files: FolderReads
) -> _Content:
    """Return a model's tensors: merged with those of an adapter, and with a score head, if it has them."""
    config, carried = config_of(reader, dtype), list[TensorEntry]()
    entries = _entries(reader, role, DTYPES[dtype])
    if role == Role.VALUE.value and not gives_scores(config):
        config = scoring(config, reader)
    if writes_text(config):
        carried = carried_entries(reader)
    if is_adapter(reader):
        entries = merged_entries(reader, role, config, entries, DTYPES[dtype], files)
    remote = "auto_map" in config and config.get("model_type") is not None and not is_known(config)
    vision, shapes = with_tower(reader.state), {e.name: e.shape for e in entries}
    skeleton = None if remote else check_names(config, shapes, checkpoint, vision)
    saved, composite, released, exported = entries, whole_of(config, vision), entries, None
    if skeleton is not None:
        if composite is not None:  # under the names of the class with all parts
            names = composite.names(skeleton)
            saved = [replace(e, name=names[e.name]) for e in entries]
        released = hub_entries(skeleton if composite is None else composite.skeleton, saved)
        exported = ExportedTensors(skeleton, entries, saved, released, carried, vision)

    def fill(stage: Path, max_shard_bytes: int, against: Path | None) -> None:
        write_side_files(stage, reader, config, remote)
        for name, contents in carried_files(reader).items() if carried else ():
            if not (stage / name).exists():
                write_fresh(stage / name, [contents])
        write_weights(stage, [*released, *carried], max_shard_bytes)
        if against is not None and exported is not None:
            check_load(stage, exported, against)

    return _Content(saved, fill, carried, remote)


def _role(reader: CheckpointReader, requested: str) -> str:
    """Return ``requested``; if it is the default and the checkpoint has only one other role, that role."""
    roles = reader.roles()
    is_other = requested == Role.POLICY.value and requested not in roles and len(roles) == 1
    return roles[0] if is_other else requested


def _entries(reader: CheckpointReader, role: str, dtype: torch.dtype) -> list[TensorEntry]:
    names = [n for n in reader.names() if n.role == role and n.kind in (PARAM, BUFFER)]
    if not names:
        roles = ", ".join(reader.roles()) or "none"
        raise CheckpointError(codes.EXPORT_NO_ROLE(str(reader.path), f"roles: {roles}", role=role))
    entries = []
    for name in names:
        key = (name.role, name.name, name.kind)
        stored = reader.dtype(*key)
        target = dtype if stored.is_floating_point else stored
        load = partial(_finite, reader, name, target)
        entries.append(TensorEntry(name.name, target, reader.shape(*key), load))
    return entries


def _finite(reader: CheckpointReader, name: TensorName, dtype: torch.dtype) -> Tensor:
    return finite(reader.read(name.role, name.name, name.kind), dtype, reader.path, name.name)
