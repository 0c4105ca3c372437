"""A job to render, and values that a shell or a scheduler could take apart."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from paceline.config.sections.launch import LaunchSection
from paceline.schedulers.job import ClusterJob

_PIECES = (
    " ",
    "\t",
    "'",
    '"',
    "`id`",
    "$(touch /tmp/hit)",
    "${HOME}",
    "\\",
    ";",
    "&&",
    "|",
    ">",
    "<",
    "*",
    "?",
    "~",
)
_PIECES += (
    "!",
    "#",
    "%",
    "%j",
    "-n",
    "--",
    "=",
    ",",
    ":",
    "[1-3]",
    "{a,b}",
    "\n",
    "\r",
    "é",
    "漢",
    "a",
    "word",
)


def random_value(seed: int, *, line_breaks: bool = True) -> str:
    """A value of one to eight pieces; seeds below the number of pieces have each once."""
    draw = random.Random(seed)
    chosen = [_PIECES[seed % len(_PIECES)], *draw.choices(_PIECES, k=draw.randrange(8))]
    text = "".join(chosen)
    return text if line_breaks else text.replace("\n", "").replace("\r", "").replace("\t", "") or "x"


def job(folder: Path, *, nodes: int = 2, gpus: int = 0, nproc: int = 1, **changes: Any) -> ClusterJob:
    """A job in ``folder``; further keys are the config's ``launch:``."""
    section: dict[str, Any] = {"nnodes": nodes, "nproc": nproc, **changes.pop("launch", {})}
    values: dict[str, Any] = {
        "name": "tiny",
        "program": ("paceline",),
        "config": folder / "c.yaml",
        "overrides": (),
        "run": str(folder / "run"),
        "out": folder / "out",
        "folder": folder,
        "nodes": nodes,
        "gpus_per_node": gpus,
        "nproc": nproc,
        "port": 29500,
        "site": LaunchSection.model_validate(section),
    }
    return ClusterJob(**{**values, **changes})
