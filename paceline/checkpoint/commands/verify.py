"""``paceline checkpoints verify``: every hash, every tensor whole, finite and of its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.checkpoint import codes
from paceline.checkpoint.collective import SingleRank
from paceline.checkpoint.export.architecture import check_names, is_known
from paceline.checkpoint.export.peft_adapter import is_adapter
from paceline.checkpoint.format.tensor_index import TensorName
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject
from paceline.protocols.roles import Role
from paceline.protocols.shard import BUFFER, PARAM

_MOST = 20  # findings of one kind


@dataclass(frozen=True)
class CheckpointReport:
    """The result of reading one checkpoint, and its errors (none: it is sound)."""

    path: Path
    step: int | None
    num_tensors: int
    num_bytes: int
    found: tuple[Diagnostic, ...]

    def to_json(self) -> JsonObject:
        return {
            "path": str(self.path),
            "step": self.step,
            "tensors": self.num_tensors,
            "bytes": self.num_bytes,
            "sound": not self.found,
            "found": [d.to_json() for d in self.found],
        }


def examine(checkpoint: Path) -> CheckpointReport:
    """Read all of a checkpoint once, with one tensor in memory at a time."""
    try:
        with CheckpointReader(checkpoint, ranks=SingleRank()) as reader:
            for file in reader.side_files():
                reader.side_file(file)
            names, findings = list(reader.names()), _Findings(checkpoint)
            for name in names:
                _examine(reader, name, findings)
            reader.verify_reads()
            findings.add_all(_against_config(reader, names))
            return CheckpointReport(
                checkpoint, reader.step, len(names), reader.manifest.total_bytes, tuple(findings.found)
            )
    except CheckpointError as error:
        return CheckpointReport(checkpoint, None, 0, 0, error.diagnostics)


class _Findings:
    """Findings; only the first of each kind are kept."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.found: list[Diagnostic] = []

    def add_all(self, more: tuple[Diagnostic, ...]) -> None:
        for finding in more:
            if sum(d.code == finding.code for d in self.found) < _MOST:
                self.found.append(finding)


def _examine(reader: CheckpointReader, name: TensorName, findings: _Findings) -> None:
    """Read one tensor and check its values and shape."""
    shape, key = reader.shape(name.role, name.name, name.kind), (name.role, name.name)
    try:
        tensor = reader.read(name.role, name.name, name.kind)
    except CheckpointError as error:
        findings.add_all(error.diagnostics)
        return
    if tensor.is_floating_point():
        wide = tensor if tensor.dtype.itemsize > 1 else tensor.float()
        if bad := int((~torch.isfinite(wide)).sum()):
            findings.add_all((_not_finite(findings.checkpoint, name, bad, tensor.numel()),))
    elementwise = tensor.is_floating_point() and len(shape) > 0 and name.kind in _ELEMENTWISE
    if elementwise and reader.has(*key, PARAM) and shape != reader.shape(*key, PARAM):
        shapes = f"{list(shape)}, the parameter {list(reader.shape(*key, PARAM))}"
        findings.add_all(
            (
                codes.CHECKPOINT_WRONG_SHAPE(
                    str(findings.checkpoint),
                    shapes,
                    kind=name.kind,
                    name=name.name,
                    role=name.role,
                    hint=_OTHER,
                ),
            )
        )


_ELEMENTWISE = frozenset({"exp_avg", "exp_avg_sq", "momentum_buffer", "max_exp_avg_sq"})
_OTHER = "resume from another checkpoint, and please report how this one came to be"


def _not_finite(checkpoint: Path, name: TensorName, bad: int, count: int) -> Diagnostic:
    return codes.CHECKPOINT_NOT_FINITE(
        str(checkpoint), f"{bad} of {count}", kind=name.kind, name=name.name, role=name.role
    )


def _against_config(reader: CheckpointReader, names: list[TensorName]) -> tuple[Diagnostic, ...]:
    """Compare the policy's tensors with the architecture of the saved config, where Transformers has it."""
    if (
        is_adapter(reader)
        or "config.json" not in reader.side_files()
        or Role.POLICY.value not in reader.roles()
    ):
        return ()
    config = reader.side_json("config.json")
    if not is_known(config):
        return ()
    shapes: Mapping[str, tuple[int, ...]] = {
        n.name: reader.shape(n.role, n.name, n.kind)
        for n in names
        if n.role == Role.POLICY.value and n.kind in (PARAM, BUFFER)
    }
    try:
        check_names({k: v for k, v in config.items() if not k.startswith("_")}, shapes, reader.path)
    except CheckpointError as error:
        return error.diagnostics
    return ()
