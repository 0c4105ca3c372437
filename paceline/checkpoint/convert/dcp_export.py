"""A checkpoint of ours as a folder of torch.distributed.checkpoint, which a plain state dict reads:

``{"model": {NAME: …}, "optim": {"state": {NAME: {"exp_avg": …}}}, "step": …}``, whole tensors under plain
names; further roles as ``ROLE`` and ``ROLE_optim``. One tensor is in memory at a time.
"""

from __future__ import annotations

import io
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.planner import WriteItem

from paceline.checkpoint import codes
from paceline.checkpoint.convert.dcp import DcpFolder
from paceline.checkpoint.convert.pickle_reader.client import PickleReader
from paceline.checkpoint.convert.pickle_reader.torch_tensors import MappedFiles
from paceline.checkpoint.export.hf_folder import check_destination, check_sources, staged
from paceline.checkpoint.format.durable_files import named_errors, need_space
from paceline.checkpoint.format.tensor_index import TensorName
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.save.retention import being_read
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject
from paceline.core.units import human_bytes
from paceline.protocols.roles import Role
from paceline.protocols.shard import BUFFER, PARAM

STEP = "step"
_Nested = dict[str, "Tensor | _Nested"]


@dataclass(frozen=True)
class DcpReport:
    """What was written."""

    source: str
    path: Path
    step: int
    num_tensors: int
    num_bytes: int

    def to_json(self) -> JsonObject:
        """Return the report for ``--json``."""
        return {
            "form": "torch.distributed.checkpoint",
            "source": self.source,
            "path": str(self.path),
            "step": self.step,
            "tensors": self.num_tensors,
            "bytes": self.num_bytes,
        }

    def as_text(self) -> str:
        """Return the report in words."""
        return (
            f"{self.source} (step {self.step}) is now {self.path}, a folder of torch.distributed.checkpoint:"
            f" {self.num_tensors} tensors, {human_bytes(self.num_bytes)}; read back and compared"
        )


class LazyPlanner(DefaultSavePlanner):
    """Plans the write with tensors without storage, and reads each tensor when it is written."""

    def __init__(self, reader: CheckpointReader, names: dict[str, TensorName]) -> None:
        super().__init__()
        self._reader, self._names = reader, names

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """Return the value to write."""
        name = self._names.get(write_item.index.fqn)
        if name is None:
            return torch.tensor(self._reader.step)
        return self._reader.read(name.role, name.name, name.kind)


def write_dcp(checkpoint: Path, to: Path, *, overwrite: bool = False) -> DcpReport:
    """Write the folder, read it back with our own reader and compare. Raises CheckpointError, ConfigError."""
    check_sources(to, checkpoint)
    check_destination(to, overwrite)
    with being_read(checkpoint), CheckpointReader(checkpoint) as reader, named_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        need_space(to.parent, reader.manifest.total_bytes)
        names = {_flat(name): name for name in reader.names()}
        state: _Nested = {STEP: torch.tensor(reader.step)}
        for name in reader.names():
            _put(state, name, reader)
        with staged(to, overwrite) as stage, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            writer = FileSystemWriter(str(stage), single_file_per_rank=True, thread_count=1)
            dcp.save(state, storage_writer=writer, planner=LazyPlanner(reader, names), no_dist=True)
            _compare(stage, reader, names)
            num_bytes = sum(path.stat().st_size for path in stage.iterdir())
        return DcpReport(checkpoint.name, to, reader.step, len(names), num_bytes)


def _flat(name: TensorName) -> str:
    return ".".join(_path(name))


def _path(name: TensorName) -> list[str]:
    policy = name.role == Role.POLICY.value
    if name.kind in (PARAM, BUFFER):
        return ["model" if policy else name.role, name.name]
    return ["optim" if policy else f"{name.role}_optim", "state", name.name, name.kind]


def _put(state: _Nested, name: TensorName, reader: CheckpointReader) -> None:
    *folders, last = _path(name)
    inner = state
    for folder in folders:
        deeper = inner.setdefault(folder, {})
        assert isinstance(deeper, dict)
        inner = deeper
    shape = reader.shape(name.role, name.name, name.kind)
    inner[last] = torch.empty(shape, dtype=reader.dtype(name.role, name.name, name.kind), device="meta")


def _compare(stage: Path, reader: CheckpointReader, names: dict[str, TensorName]) -> None:
    """Raise CheckpointError if the folder holds other tensors than the checkpoint."""
    with closing(PickleReader()) as pickles:
        folder = DcpFolder(stage, MappedFiles(pickles))
        different = sorted(set(folder.tensors) ^ {STEP, *names})
        for flat, name in names.items():
            if flat in folder.tensors:
                theirs = folder.lazy(flat).load()
                if not torch.equal(theirs, reader.read(name.role, name.name, name.kind)):
                    different.append(flat)
    if different:
        raise CheckpointError(
            codes.EXPORT_LOAD_CHECK(
                "the folder holds other tensors than the checkpoint; it was removed",
                str(stage),
                ", ".join(different[:5]),
            )
        )
