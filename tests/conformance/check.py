"""One cell, held to everything a strategy must do: the reference's losses, a resume bit for bit, an export
with the reference's logits.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from cells import LOGIT_TOLERANCE, LOSS_TOLERANCE, ON_POLICY, SAVED, STEPS, Cell
from pool import HERE, ROOT, Pool
from support import write_teacher

from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import ALGORITHMS
from paceline.core.rundir import RunDir
from paceline.evaluation.compare_runs import compare
from paceline.runlog.history import load_history


@dataclass(frozen=True)
class Result:
    """``works``, ``refused`` (before the start, with a reason), ``skipped`` (the machine lacks something)
    or ``fails``.
    """

    cell: str
    result: str
    reason: str = ""
    measured: dict[str, Any] = field(default_factory=dict)


class Failure(Exception):
    """What a cell did not hold."""


class Checker:
    """Runs cells under ``folder``; references are run once and kept."""

    #: What a rank runs in the worker's place.
    program: Path | None = None

    def __init__(self, folder: Path, tokenizer: Path, data: Mapping[str, Path]) -> None:
        """``data``: rows by their kind."""
        self.folder, self.tokenizer, self.data = folder, tokenizer, data
        write_teacher(folder / "teacher", tokenizer)
        own = folder / "own"
        own.mkdir(parents=True, exist_ok=True)
        (own / "own_strategy.py").write_text(documented_strategy())
        self.pool = Pool(own, self.program)

    def check(self, cell: Cell) -> Result:
        """Everything about one cell."""
        run = self.run_dir(cell)
        refusal = self.refused(cell)
        if refusal:
            return Result(cell.name, "refused", refusal)
        try:
            measured = self._check(cell, run)
        except Failure as failure:
            return Result(cell.name, "fails", str(failure)[-2000:])
        return Result(cell.name, "works", "", measured)

    def refused(self, cell: Cell) -> str:
        """Why the plan refuses this cell, or an empty text."""
        from paceline.config.load import load_config
        from paceline.launch.preflight.plan_job import planned

        try:
            loaded = load_config(
                str(self.yaml(cell, self.run_dir(cell))), flags={"launch.nproc": cell.variant.nproc}
            )
            with mock.patch.dict(
                os.environ, {"PYTHONPATH": f"{HERE}{os.pathsep}{self.folder / 'own'}"}
            ):  # as the ranks have it
                planned(loaded)
        except ConfigError as error:
            return "; ".join(f"{d.code}: {d.what}" for d in error.diagnostics)
        return ""

    def run_dir(self, cell: Cell) -> RunDir:
        name = "".join(c if c.isalnum() else "-" for c in cell.name)
        return RunDir.at(self.folder / name)

    def yaml(self, cell: Cell, run: RunDir, **training: Any) -> Path:
        data = self.data[ALGORITHMS.spec(cell.learns).rows]
        config = cell.config(str(self.tokenizer), str(data), str(self.folder / "cache"), str(run.root))
        config["training"].update(training)
        path = self.folder / f"{run.root.name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config, indent=1))
        return path

    def train(self, cell: Cell, run: RunDir, **training: Any) -> None:
        """Raises Failure with the last lines when a rank ends badly."""
        yaml = self.yaml(cell, run, **training)
        ended = self.pool.run(
            ["--config", str(yaml)], cell.variant.nproc, self.folder / "logs" / run.root.name
        )
        if not ended.ok:
            said = [line for line in ended.output.splitlines() if line and not line.startswith("frame #")]
            raise Failure(f"exit codes {ended.codes}: " + "\n".join(said[-25:]))

    def _check(self, cell: Cell, run: RunDir) -> dict[str, Any]:
        reference = self.run_dir(cell.reference())
        if not reference.result_json.exists():
            self.train(cell.reference(), reference)
        if run != reference:
            self.train(cell, run)
        measured = self.parity(cell, reference, run)
        if cell.precision == "fp64":
            return measured  # resume and export are the fp32 and bf16 cells' part
        measured["resume"] = self.resume(cell, run)
        measured["logits"] = self.export(cell, reference, run)
        return measured

    def parity(self, cell: Cell, reference: RunDir, run: RunDir) -> dict[str, Any]:
        """Loss, gradient norm, parameters and moments against one process."""
        found = {kind: compare(reference, run, kind) for kind in ("param", "exp_avg", "exp_avg_sq")}
        steps = found["param"]["steps"]
        if len(steps) != STEPS:
            raise Failure(f"{len(steps)} of {STEPS} steps in common with the reference")
        # their loss is relative to each rollout; that it learns shows in the weights
        falls = cell.learns not in ON_POLICY
        if falls and steps[0]["loss"][1] - steps[-1]["loss"][1] < 0.1 and cell.finetuning == "full":
            raise Failure("the reference did not learn: nothing would be proved")
        if not any(s["grad_norm"][1] > 0.5 for s in steps) and cell.finetuning == "full":
            raise Failure("clipping was never active")
        missing = {kind: f["missing"] for kind, f in found.items() if f["missing"]}
        if missing:
            raise Failure(f"only one of the two saved: {missing}")
        loss = max(abs(a - b) for a, b in (s["loss"] for s in steps))
        norm = max(abs(a - b) / b for a, b in (s["grad_norm"] for s in steps))
        tensors = {
            kind: max(s["tensors"]["relative"] for s in f["steps"] if "tensors" in s)
            for kind, f in found.items()
        }
        measured = {"loss": loss, "grad_norm": norm, **tensors}
        allowed = cell.tensor_tolerance
        # the comparisons are written so that a NaN fails
        if not loss <= LOSS_TOLERANCE[cell.precision] or not norm <= allowed:
            raise Failure(f"further from one process than {LOSS_TOLERANCE[cell.precision]}: {measured}")
        if not tensors["param"] <= allowed:
            raise Failure(f"parameters further from one process than {allowed}: {measured}")
        if any(s.get("samples_differ") for s in steps):
            raise Failure("other samples than one process")
        return measured

    def resume(self, cell: Cell, run: RunDir) -> str:
        """From the checkpoint in the middle to the end: the same losses and the same bytes."""
        again = RunDir.at(f"{run.root}-resumed")
        self.train(cell, again, resume_from_checkpoint=str(run.checkpoint(SAVED)))
        one, other = load_history(run).steps, load_history(again).steps
        for step in range(SAVED + 1, STEPS + 1):
            a, b = one[step], other[step]
            if (a.loss, a.grad_norm, a.lr, a.sample_digest) != (b.loss, b.grad_norm, b.lr, b.sample_digest):
                raise Failure(
                    f"after a resume step {step} has loss {b.loss!r}, before {a.loss!r}; norm"
                    f" {b.grad_norm!r}, before {a.grad_norm!r}"
                )
        different = [str(name) for name in different_tensors(run.checkpoint(STEPS), again.checkpoint(STEPS))]
        if different:
            raise Failure(f"after a resume {len(different)} tensors differ, first {different[:3]}")
        return "bit-exact"

    def export(self, cell: Cell, reference: RunDir, run: RunDir) -> float:
        """The exported folder's logits against the reference's."""
        logits = [self.logits(place, cell) for place in (reference, run)]
        gap = float((logits[0] - logits[1]).abs().max())
        if not gap <= LOGIT_TOLERANCE[cell.precision]:
            raise Failure(f"logits of the export differ by {gap}")
        return gap

    def logits(self, run: RunDir, cell: Cell) -> torch.Tensor:
        from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

        from paceline.checkpoint.export.main import main as export

        outputs = set(ALGORITHMS.spec(cell.learns).outputs)
        scores = (
            AutoModelForSequenceClassification if {"scores", "classes"} & outputs else AutoModelForCausalLM
        )
        auto: Any = AutoModel if "hidden" in outputs else scores
        folder = Path(f"{run.root}-hf")
        if not folder.is_dir():
            merge = [] if cell.finetuning == "full" else ["--merge"]
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = export(["export", str(run.root), "--to", str(folder), *merge])
            if code:
                raise Failure(f"export ended with {code}: {said.getvalue()[-1000:]}")
        model = auto.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            given = model(torch.arange(40)[None] + 5)
            return given.last_hidden_state if "hidden" in outputs else given.logits


def documented_strategy() -> str:
    """The class that docs/how-to/extend.md shows."""
    page = (ROOT / "docs/how-to/extend.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found, "the page shows no class"
    return found.group(1)


def different_tensors(one: Path, other: Path) -> Sequence[Any]:
    """Tensors that are not equal bit for bit, or that only one of the two checkpoints holds."""
    with CheckpointReader(one) as a, CheckpointReader(other) as b:
        names = set(a.names())
        found = list(names ^ set(b.names()))
        for name in names & set(b.names()):
            x, y = (reader.read(name.role, name.name, name.kind) for reader in (a, b))
            if x.dtype != y.dtype or not torch.equal(x.view(-1), y.view(-1)):
                found.append(name)
        return found
