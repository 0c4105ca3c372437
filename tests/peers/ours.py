"""What Paceline makes of another program's keys: the import, its tokens and labels, its losses."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.import_export.commands.command_line import read_command
from paceline.config.import_export.import_config import flat, import_command, import_data
from paceline.config.import_export.verdicts import Imported, KeyVerdict
from paceline.config.import_export.write_yaml import accepted
from paceline.rules import of_config

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # as warm processes have them: tests/warm.py


@dataclass(frozen=True)
class Ours:
    """The import of one file: its verdicts, and the YAML that it became."""

    found: Imported
    text: str

    @property
    def said(self) -> dict[str, str]:
        """The keys that are not kept as they are, with the reason."""
        return {
            key: finding.says
            for key, finding in self.found.findings.items()
            if finding.verdict in (KeyVerdict.LOST, KeyVerdict.DIFFERS)
        }


def imported(program: str, given: Any) -> Ours:
    """Import a mapping of keys (``trl``: [trainer, keys]; ``swift``: the command's words)."""
    if program == "swift":
        found = import_command(read_command(["swift", *given]))
    else:
        trainer, keys = given if program == "trl" else (None, given)
        found = import_data(dict(keys), dict.fromkeys(flat(keys), 1), "given.yaml", program, trainer)
    made, problems = accepted(found, "given", of_config)
    if problems:
        raise ValueError("\n".join(problem.render() for problem in problems))
    return Ours(found, made.text)


def tokens(ours: Ours, folder: Path) -> list[tuple[list[int], list[int]]]:
    """Return ids and labels of each document, in the rows' order."""
    from paceline.config.load import load_config
    from paceline.data.prepare.prepare import prepare
    from paceline.data.rows.kinds.base import row_kind
    from paceline.plan.algorithms.spec import algorithm_spec

    file = folder / "ours.yaml"
    file.write_text(ours.text, encoding="utf-8")
    config = load_config(str(file)).config
    kind = row_kind(algorithm_spec(config.training.algorithm).rows)
    made = prepare(config.data, config.model, seed=0, cache_dir=folder / "cache", kind=kind)
    documents = [made.train.row(number) for number in range(len(made.train))]
    return [(ids.tolist(), labels.tolist()) for ids, labels in documents]


def losses(ours: Ours, folder: Path, *more: str) -> list[float]:
    """Train the import; return the losses of its steps. ``more``: words for ``paceline train``."""
    from support import run_process

    from paceline.core.rundir import RunDir
    from paceline.runlog.events import Step, read_events

    file, run = folder / "ours.yaml", folder / f"run-{len(list(folder.iterdir()))}"
    file.write_text(ours.text, encoding="utf-8")
    argv = [sys.executable, "-m", "paceline.cli.main", "train", str(file), f"training.output_dir={run}"]
    cache = {"PACELINE_CACHE": str(folder / "cache")}
    done = run_process([*argv, "--nproc", "1", *more], 600, cache, ROOT)
    if done.code:
        raise RuntimeError(f"paceline ended with {done.code}:\n{done.err[-3000:]}")
    events = [record.event for record in read_events(RunDir.at(run).events(0))]
    return [event.loss for event in events if isinstance(event, Step)]
