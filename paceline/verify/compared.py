"""The JSON that passes between the steps of ``paceline verify``: what two runs have apart, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict


class Furthest(TypedDict):
    """The tensor that differs most: its name, and the norm of the difference over that of the reference.

    ``count``: the tensors that both have.
    """

    name: str
    relative: float
    count: int


class ComparedStep(TypedDict):
    """One step of both runs, the reference first; ``tensors`` where both saved a checkpoint."""

    step: int
    loss: list[float]
    grad_norm: list[float | None]
    samples_differ: NotRequired[bool]
    tensors: NotRequired[Furthest]


class ComparedRuns(TypedDict):
    """Two runs; ``missing``: names of parameters that only one of them saved."""

    steps: list[ComparedStep]
    missing: list[str]


class StepRow(TypedDict):
    """The differences of one step (loss: absolute; gradient norm and parameter: relative)."""

    step: int
    loss: float
    loss_gap: float
    grad_norm: float
    norm_gap: float
    parameter_gap: float
    parameter: str
    samples_differ: bool


class CutRow(TypedDict):
    """The differences of one cut of the global batch; infinite where no step was finished."""

    cut: str
    loss_gap: float
    parameter_gap: float
    parameter: str
    step: NotRequired[int]
    loss: NotRequired[float]
    grad_norm: NotRequired[float]
    norm_gap: NotRequired[float]
    samples_differ: NotRequired[bool]


class VerdictJson(TypedDict):
    """``verdict.Verdict`` without its text."""

    agrees: bool
    rows: Sequence[StepRow] | Sequence[CutRow]
    parted: str


class VerifyReport(VerdictJson):
    """``verify.json``."""

    strategy: str
    against: str
    precision: str
    probe: NotRequired[VerdictJson]
