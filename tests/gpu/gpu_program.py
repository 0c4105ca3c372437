"""Paceline as a user runs it: a process with a time limit, and what it left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import Run, worker_environment, write_pairs, write_rows, write_tokenizer

from paceline.core.rundir import RunDir
from paceline.runlog.events import Step
from paceline.runlog.history import load_history

REFUSED = 2  # the exit code of a job that was refused before its start
TIMED_OUT = 124


@dataclass(frozen=True)
class Programs:
    """Where programs run and how they are started; ``started``: subprocess.Popen or one like it."""

    folder: Path
    started: Callable[..., Any] = subprocess.Popen

    def popen(self, verb: str, *arguments: str) -> Any:
        """Start ``paceline VERB …``, in a session of its own."""
        return self.started(
            [sys.executable, "-m", "paceline.cli.main", verb, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=worker_environment({"TOKENIZERS_PARALLELISM": "false"}),
            cwd=self.folder,
            start_new_session=True,
        )

    def run(self, seconds: float, verb: str, *arguments: str) -> Run:
        """``paceline VERB …`` to its end; after ``seconds`` all of it is killed (exit code TIMED_OUT)."""
        process = self.popen(verb, *arguments)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return Run(TIMED_OUT, out, f"{err}\nno end within {seconds:.0f} s")
        return Run(process.returncode, out, err)

    def yaml(self, name: str, config: Mapping[str, Any]) -> str:
        """A config file, by its path. JSON is YAML."""
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(config, indent=1))
        return str(path)

    def folders(self) -> dict[str, str]:
        """Write the tokenizer and the data sets; their places by name."""
        made = {
            "tokenizer": write_tokenizer(self.folder / "tokenizer"),
            "documents": write_rows(self.folder / "documents.json", 120),
            "pairs": write_pairs(self.folder / "pairs.json", 120),
            "cache": self.folder / "cache",
        }
        return {name: str(path) for name, path in made.items()}


def steps_of(run: Path) -> dict[int, Step]:
    """The finished steps of a run, by number."""
    return load_history(RunDir.at(run)).steps


def device_of(run: Path) -> str:
    """The device that the plan of a run chose."""
    return str(json.loads(RunDir.at(run).plan_json.read_text())["device"])


def said(run: Run) -> str:
    """The lines of a failed program that tell why."""
    lines = [line for line in f"{run.out}\n{run.err}".splitlines() if line.strip()]
    wrong = [i for i, line in enumerate(lines) if line.lstrip().startswith("error")]
    return " ".join(lines[wrong[0] :][:4] if wrong else lines[-4:])[:600]
