"""Compare two runs: do they agree within the precision's tolerance, and where do they first differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from paceline.verify.sides import Tolerance

_NOTHING: LargestDifference = {"name": "", "relative": math.nan, "count": 0}  # NaN is beyond every tolerance


@dataclass(frozen=True)
class Verdict:
    """``text``: for people (ends with a newline); ``rows`` and ``parted``: for programs.

    ``parted`` is empty if the runs agree.
    """

    agrees: bool
    text: str
    rows: Sequence[StepRow] | Sequence[CutRow]
    parted: str = ""

    def to_json(self) -> VerdictJson:
        return {"agrees": self.agrees, "rows": self.rows, "parted": self.parted}


def judge(compared: ComparedRuns, tolerance: Tolerance) -> Verdict:
    """Judge the parameters in the result of ``evaluation.compare_runs``."""
    rows = [_row(step) for step in compared["steps"]]
    lines = [
        f"{'step':>6} {'loss':>12} {'differs by':>12} {'gradient norm':>14} {'differs by':>12}"
        f" {'parameters':>12}  furthest"
    ]
    for row in rows:
        lines.append(
            f"{row['step']:>6} {row['loss']:>12.6f} {row['loss_gap']:>12.1e} {row['grad_norm']:>14.6f}"
            f" {row['norm_gap']:>12.1e} {row['parameter_gap']:>12.1e}  {row['parameter']}"
        )
    lines.append(
        f"{'allowed':>6} {'':>11} {tolerance.loss:>12.0e} {'':>14} {tolerance.grad_norm:>12.0e}"
        f" {tolerance.parameter:>12.0e}"
    )
    parted = _parted(rows, compared["missing"], tolerance)
    if rows and not parted and abs(rows[-1]["loss"] - rows[0]["loss"]) < 100 * tolerance.loss:
        lines.append(
            "note: the loss hardly changed, so this proves little; use more --steps or a larger learning rate"
        )
    lines.append(f"the runs differ: {parted}" if parted else "the runs agree")
    return Verdict(not parted, "\n".join(lines) + "\n", tuple(rows), parted)


def judge_probe(compared: Mapping[str, ComparedRuns], tolerance: Tolerance, first: str) -> Verdict:
    """Judge gradients of one global batch split in several ways, each compared with the ``first`` split."""
    rows: list[CutRow] = []
    parted = ""
    for cut, compared_runs in compared.items():
        row: CutRow = {
            "cut": cut,
            "parameter_gap": math.inf,
            "loss_gap": math.inf,
            "parameter": "nothing",
        }
        if compared_runs["steps"]:
            row = {"cut": cut, **_row(compared_runs["steps"][0])}
        rows.append(row)
        if not parted and (
            _beyond(row["parameter_gap"], tolerance.parameter) or _beyond(row["loss_gap"], tolerance.loss)
        ):
            parted = (
                f"split as {cut}, the gradient of {row['parameter']} differs by"
                f" {row['parameter_gap']:.1e} of all gradients"
            )
    gaps = ", ".join(f"{row['cut']} {row['parameter_gap']:.1e}" for row in rows)
    text = (
        f"one global batch split as {first} and in other ways: gradients differ by {gaps} (allowed"
        f" {tolerance.parameter:.0e})\n"
    )
    text += f"the runs differ: {parted}\n" if parted else "the split makes no difference\n"
    return Verdict(not parted, text, tuple(rows), parted)


def _row(step: ComparedStep) -> StepRow:
    (loss, expected), norms = step["loss"], step["grad_norm"]
    norm, expected_norm = (math.nan if n is None else float(n) for n in norms)
    tensors = step.get("tensors") or _NOTHING
    return {
        "step": step["step"],
        "loss": expected,
        "loss_gap": abs(loss - expected),
        "grad_norm": expected_norm,
        "norm_gap": abs(norm - expected_norm) / (abs(expected_norm) or 1.0),
        "parameter_gap": tensors["relative"],
        "parameter": tensors["name"],
        "samples_differ": bool(step.get("samples_differ")),
    }


def _parted(rows: list[StepRow], missing: list[str], tolerance: Tolerance) -> str:
    if missing:
        return f"only one of the two saved {missing[0]}" + (
            f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        )
    if not rows:
        return "no step was completed by both"
    for row in rows:
        step = f"step {row['step']}"
        if row["samples_differ"]:
            return f"at {step} they processed different samples"
        if _beyond(row["loss_gap"], tolerance.loss):
            return (
                f"at {step} the loss differs by {row['loss_gap']:.1e}; the parameter with the largest"
                f" difference is {row['parameter']}"
            )
        if _beyond(row["norm_gap"], tolerance.grad_norm):
            return (
                f"at {step} the gradient norm differs by {row['norm_gap']:.1e} of it; the parameter"
                f" with the largest difference is {row['parameter']}"
            )
        if _beyond(row["parameter_gap"], tolerance.parameter):
            return f"after {step} {row['parameter']} differs by {row['parameter_gap']:.1e} of its norm"
    return ""


def _beyond(gap: float, allowed: float) -> bool:
    """Whether a gap exceeds the tolerance; also True for NaN."""
    return not gap <= allowed


class LargestDifference(TypedDict):
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
    tensors: NotRequired[LargestDifference]


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
