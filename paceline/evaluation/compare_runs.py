"""Compare two runs by step and by tensor.

``python -m paceline.evaluation.compare_runs REFERENCE RUN --kind param`` writes one JSON object to standard
output: ``steps`` (losses, gradient norms and the largest tensor difference of each step) and ``missing``
(tensors that only one of the two saved). The caller decides which differences are too large.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence

import torch

from paceline.checkpoint.format.tensor_index import TensorName
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.rundir import RunDir
from paceline.launch.program import program
from paceline.runlog.history import load_history
from paceline.verify.verdict import ComparedRuns, ComparedStep, LargestDifference


def compare(reference: RunDir, run: RunDir, kind: str) -> ComparedRuns:
    """Compare every step that both runs finished.

    ``tensors`` is the largest relative difference of a tensor of ``kind`` in the step's checkpoints: ``|a -
    b| / |b|`` in the 2-norm, where b is the reference's. For ``exp_avg`` (a tenth of the gradient after one
    AdamW step) the divisor is the norm over all tensors.
    """
    our_log, their_log = load_history(run), load_history(reference)
    steps: list[ComparedStep] = []
    missing: list[str] = []
    for step in sorted(set(our_log.steps) & set(their_log.steps)):
        a, b = our_log.steps[step], their_log.steps[step]
        line: ComparedStep = {
            "step": step,
            "loss": [a.loss, b.loss],
            "grad_norm": [a.grad_norm, b.grad_norm],
        }
        if a.sample_digest != b.sample_digest:
            line["samples_differ"] = True
        if run.checkpoint(step).is_dir() and reference.checkpoint(step).is_dir():
            with (
                CheckpointReader(run.checkpoint(step)) as ours,
                CheckpointReader(reference.checkpoint(step)) as theirs,
            ):
                line["tensors"], missing = differences(ours, theirs, kind)
        steps.append(line)
    return {"steps": steps, "missing": missing}


def differences(
    ours: CheckpointReader, theirs: CheckpointReader, kind: str
) -> tuple[LargestDifference, list[str]]:
    """Return (name and relative difference of the tensor that differs most, names that only one run has)."""
    names, expected = ({n for n in reader.names() if n.kind == kind} for reader in (ours, theirs))
    norms: dict[TensorName, tuple[float, float]] = {}
    for name in sorted(names & expected, key=str):
        a, b = (reader.read(name.role, name.name, kind).to(torch.float64) for reader in (ours, theirs))
        norms[name] = (float((a - b).norm()), float(b.norm()))
    # A single moment may be almost 0, so its divisor is the norm of all
    total = math.sqrt(sum(norm**2 for _, norm in norms.values()))
    relative = {
        name.name: gap / ((total if kind == "exp_avg" else norm) or 1.0)
        for name, (gap, norm) in norms.items()
    }
    worst, most = max(relative.items(), key=lambda item: item[1], default=("", 0.0))
    missing = sorted(name.name for name in names ^ expected)
    return {"name": worst, "relative": most, "count": len(norms)}, missing


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline.evaluation.compare_runs")
    parser.add_argument("reference")
    parser.add_argument("run")
    parser.add_argument("--kind", default="param")
    options = parser.parse_args(argv)
    compared = compare(RunDir.at(options.reference), RunDir.at(options.run), options.kind)
    print(json.dumps(compared, allow_nan=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
