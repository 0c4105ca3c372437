"""``paceline checkpoints average``: the mean of several checkpoints' weights, read as if it were one.

An adapter's weights are two factors, whose means do not multiply to the mean of their products. So the mean
of N adapters of rank r is an adapter of rank N · r. Its factors are those of the N adapters side by side,
with one of the two divided by N, and the same scale. This is exact but for rounding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.export.peft_adapter import is_adapter
from paceline.checkpoint.format.foreign_folders import ADAPTER_CONFIG
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError
from paceline.core.files import MAX_CONFIG_BYTES
from paceline.core.json_types import JsonObject, as_number, as_object
from paceline.plan.model.parameter_list import MAGNITUDE
from paceline.protocols.shard import BUFFER, PARAM

_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


class AveragedReader(CheckpointReader):
    """Reads the mean weights of all checkpoints; other tensors are those of the first one.

    Raises CheckpointError ``checkpoint.cannot_average`` for other tensors, shapes, bases or adapters.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths[0])
        self._rest = ExitStack()
        try:
            self._others = [self._rest.enter_context(CheckpointReader(path)) for path in paths[1:]]
            self._adapter = is_adapter(self)
            for other in self._others:
                self._check(other)
            if self._adapter:
                self.state = {
                    **self.state,
                    "adapter": self._widened(as_object(self.state.get("adapter")), "alpha"),
                }
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """The number of checkpoints."""
        return 1 + len(self._others)

    def shape(self, role: str, name: str, kind: str) -> tuple[int, ...]:
        """Return the shape of the full tensor; an adapter's factors are wider than those of each
        checkpoint."""
        shape = super().shape(role, name, kind)
        if kind == PARAM and (dim := self._side(name)) is not None:
            return tuple(n * self.count if d == dim else n for d, n in enumerate(shape))
        return shape

    def read(self, role: str, name: str, kind: str) -> Tensor:
        """Return the mean of all checkpoints' tensors, summed in float64."""
        shape = super().shape(role, name, kind)  # of each one's tensor
        first = self.read_block(role, name, kind, (0,) * len(shape), shape)
        if kind not in (PARAM, BUFFER) or not first.is_floating_point():
            return first
        if kind == PARAM and (dim := self._side(name)) is not None:
            beside = torch.cat([first, *(other.read(role, name, kind) for other in self._others)], dim=dim)
            return beside / self.count if name.endswith(_UP) else beside
        total = first.to(torch.float64)
        for other in self._others:
            total += other.read(role, name, kind)
        return (total / self.count).to(first.dtype)

    def side_file(self, name: str) -> bytes:
        """Return a side file; an adapter's settings have the rank of the mean."""
        content = super().side_file(name)
        if name != ADAPTER_CONFIG or not getattr(self, "_adapter", False):
            return content
        settings = parse_object(content, str(self.path), max_bytes=MAX_CONFIG_BYTES)
        return json.dumps(self._widened(settings, "lora_alpha"), indent=2).encode()

    def close(self) -> None:
        """Close all checkpoints' files."""
        super().close()
        if hasattr(self, "_rest"):
            self._rest.close()

    def _side(self, name: str) -> int | None:
        """Return the dim along which an adapter's factors are concatenated; None for other weights."""
        if not self._adapter:
            return None
        return 0 if name.endswith(_DOWN) else 1 if name.endswith(_UP) else None

    def _widened(self, settings: JsonObject, alpha: str) -> JsonObject:
        """Return an adapter's settings with N times its ranks and the same scales."""
        grown = math.sqrt(self.count) if settings.get("use_rslora") else self.count
        rank, of = as_number(settings["r"]), as_number(settings[alpha])
        ranks, alphas = (as_object(settings.get(key)) for key in _PATTERNS)
        wider: JsonObject = {"r": int(rank) * self.count, alpha: of * grown}
        if ranks:
            wider["rank_pattern"] = {key: int(as_number(r)) * self.count for key, r in ranks.items()}
        if alphas:
            wider["alpha_pattern"] = {key: as_number(a) * grown for key, a in alphas.items()}
        return {**settings, **wider}

    def _check(self, other: CheckpointReader) -> None:
        """Refuse a checkpoint that cannot be averaged with the first."""
        apart = {"DoRA": MAGNITUDE, "OFT": ".oft_R.weight"}
        for kind, end in apart.items():
            if any(name.name.endswith(end) for name in self.names()):
                raise self._refused(other, f"{kind}'s weights have no mean that is an adapter", end)
        for key, subject in _OF_ONE_RUN.items():
            mine, theirs = self.state.get(key), other.state.get(key)
            if mine != theirs:
                raise self._refused(other, f"{subject} differ", f"{str(mine)[:80]} and {str(theirs)[:80]}")
        ours = {n for n in self.names() if n.kind in (PARAM, BUFFER)}
        others = {n for n in other.names() if n.kind in (PARAM, BUFFER)}
        if ours != others:
            differ = sorted(n.encode() for n in ours ^ others)
            raise self._refused(other, "their weights have other names", ", ".join(differ[:3]))
        for n in sorted(ours, key=lambda n: n.encode()):
            shape = CheckpointReader.shape(self, n.role, n.name, n.kind)
            if shape != (of_other := other.shape(n.role, n.name, n.kind)):
                raise self._refused(other, f"'{n.name}' has another shape", f"{shape} and {of_other}")
        if as_object(self.state.get("adapter")).get("target_parameters"):
            raise self._refused(
                other, "adapters on fused experts are not averaged", "lora.target_parameters", _MERGED
            )
        if init := as_object(self.state.get("adapter")).get("init_lora_weights"):
            raise self._refused(
                other,
                "adapters that began with a part of the base weights are not averaged",
                f"lora.init_lora_weights: {init}",
                _MERGED,
            )

    def _refused(
        self, other: CheckpointReader, detail: str, values: str, remedy: str = ""
    ) -> CheckpointError:
        where = f"{self.path}, {other.path}"
        remedy = remedy.format(where=self.path) or _OF_ONE_MODEL
        return CheckpointError(codes.CHECKPOINT_CANNOT_AVERAGE(where, values, detail=detail, remedy=remedy))


_OF_ONE_MODEL = "average checkpoints of one model (adapters: of one base and one lora section)"
_MERGED = (
    "write each as a complete model (paceline export {where} --merge --to DIR), and average those folders"
    " with a program that averages models (mergekit, merge_method: linear); no command of Paceline does"
)
_PATTERNS = ("rank_pattern", "alpha_pattern")
_OF_ONE_RUN = {"base_model": "the bases of the adapters", "adapter": "the adapters"}
