"""One case of the table: the CPU's losses, the device's, a resume and an export."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_cases import CASE_SECONDS, LOGITS, SAVED, STEPS, DeviceCase
from gpu_program import REFUSED, Programs, device_of, said, steps_of

from paceline.core.rundir import RunDir


@dataclass(frozen=True)
class Finding:
    """What a case came to: ``holds``, ``refused`` before its start, ``fails``, or ``reported`` (numbers that
    are held to nothing).
    """

    name: str
    group: str
    result: str
    text: str
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Broken(Exception):
    """What a case did not hold."""


class Refusal(Exception):
    """The program refused the job before its start."""


class DeviceChecker:
    """Runs cases on ``device`` (``cpu`` tries the script itself). References are run once and shared."""

    def __init__(self, programs: Programs, device: str) -> None:
        self.programs, self.device, self.folders = programs, device, programs.folders()
        self._lock = threading.Lock()
        self._known: dict[str, threading.Lock] = {}

    def check(self, case: DeviceCase) -> Finding:
        """Everything about one case; never raises, so that the others go on."""
        started = time.monotonic()
        try:
            result, text = "holds", "; ".join(self._check(case))
        except Refusal as refusal:
            result, text = ("refused" if case.may_refuse else "fails"), f"refused: {refusal}"
        except Exception as error:  # a defect of the script must not hide the other cases either
            result, text = "fails", str(error) if isinstance(error, Broken) else repr(error)
        return Finding(case.name, case.group, result, text, time.monotonic() - started)

    def _check(self, case: DeviceCase) -> list[str]:
        run = self._place(case.name)
        self._train(case, self.device, run)
        if (found := device_of(run)) != self.device:
            raise Broken(f"asked for {self.device}, it ran on {found}")
        reference = self._reference(case)
        lines = [self._losses(case, reference, run)]
        if case.resume:
            lines.append(self._resume(case, run))
        if case.export:
            lines.append(self._export(case, reference, run))
        return lines

    def _place(self, name: str) -> Path:
        return self.programs.folder / "".join(c if c.isalnum() else "-" for c in name)

    def _train(self, case: DeviceCase, device: str, run: Path, **training: Any) -> None:
        config = self.programs.yaml(run.name, case.config(self.folders, str(run), device, **training))
        ended = self.programs.run(CASE_SECONDS, "train", config, "--nproc", str(case.processes))
        if ended.code == REFUSED:
            raise Refusal(said(ended))
        if ended.code:
            raise Broken(f"exit code {ended.code} on {device}: {said(ended)}")

    def _reference(self, case: DeviceCase) -> Path:
        """The CPU's run in one process; cases that differ in placement only share it."""
        case = case.reference
        key = str(sorted(case.config(self.folders, "", "cpu").items()))
        with self._lock:
            lock = self._known.setdefault(key, threading.Lock())
            run = self.programs.folder / f"reference-{list(self._known).index(key)}"
        with lock:
            if not RunDir.at(run).result_json.exists():
                self._train(case, "cpu", run)
        return run

    def _losses(self, case: DeviceCase, reference: Path, run: Path) -> str:
        here, there = steps_of(reference), steps_of(run)
        if sorted(here) != list(range(1, STEPS + 1)) or sorted(there) != sorted(here):
            raise Broken(f"steps {sorted(there)} on {self.device}, {sorted(here)} on the CPU")
        gap = max(abs(here[i].loss - there[i].loss) for i in here)
        if not gap <= case.close:  # written so that a NaN fails
            losses = [(round(here[i].loss, 5), round(there[i].loss, 5)) for i in here]
            raise Broken(f"losses differ by {gap:.1e} (CPU, {self.device}: {losses})")
        return f"losses within {gap:.1e} of the CPU's"

    def _resume(self, case: DeviceCase, run: Path) -> str:
        again = Path(f"{run}-resumed")
        saved = str(RunDir.at(run).checkpoint(SAVED))
        self._train(case, self.device, again, resume_from_checkpoint=saved)
        one, other = steps_of(run), steps_of(again)
        gaps = []
        for step in range(SAVED + 1, STEPS + 1):
            a, b = one[step], other[step]
            if a.sample_digest != b.sample_digest:
                raise Broken(f"step {step} saw other samples after a resume")
            gaps.append(max(abs(a.loss - b.loss), abs((a.grad_norm or 0) - (b.grad_norm or 0))))
        if not max(gaps) <= case.close * 10:
            raise Broken(f"after a resume loss or norm differ by {max(gaps):.1e}")
        same = "bit for bit" if max(gaps) == 0 and self._equal(run, again) else f"not exact: {max(gaps):.1e}"
        return f"resume {same}"

    def _equal(self, run: Path, again: Path) -> bool:
        """Whether the last checkpoints hold the same tensors, bit for bit."""
        import torch

        from paceline.checkpoint.load.reader import CheckpointReader

        last = [RunDir.at(place).checkpoint(STEPS) for place in (run, again)]
        with CheckpointReader(last[0]) as a, CheckpointReader(last[1]) as b:
            names = set(a.names())
            return names == set(b.names()) and all(
                torch.equal(*(r.read(n.role, n.name, n.kind).view(-1) for r in (a, b))) for n in names
            )

    def _export(self, case: DeviceCase, reference: Path, run: Path) -> str:
        logits = [self._logits(place) for place in (reference, run)]
        gap = float((logits[0] - logits[1]).abs().max())
        if not gap <= LOGITS[case.precision]:
            raise Broken(f"logits of the export differ by {gap:.1e}")
        return f"logits of the export within {gap:.1e}"

    def _logits(self, run: Path) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        folder = Path(f"{run}-hf-{self._place(run.name).name}")
        ended = self.programs.run(CASE_SECONDS, "export", str(run), "--to", str(folder), "--overwrite")
        if ended.code:
            raise Broken(f"export ended with {ended.code}: {said(ended)}")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            return model(torch.arange(40)[None] + 5).logits


def summary(findings: Mapping[str, Finding]) -> str:
    """``26 hold, 1 refused, 1 fails``."""
    counts = [
        (word, sum(f.result == result for f in findings.values()))
        for result, word in (
            ("holds", "hold"),
            ("reported", "reported"),
            ("refused", "refused"),
            ("fails", "fail"),
        )
    ]
    return ", ".join(f"{count} {word}" for word, count in counts if count)
