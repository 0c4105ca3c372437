"""Query a child process, which may import torch, and cache its answer for later starts of this user."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.core.package import ROOT


@dataclass(frozen=True)
class ChildAnswer:
    """A child's output: ``line``, its last one.

    ``end``: the last line of its errors, its exit code, or why it did not start; ``late``: it was ended at
    its time limit.
    """

    line: str = ""
    end: str = ""
    late: bool = False


def child_reply(module: str, environ: Mapping[str, str], seconds: float, request: str = "") -> ChildAnswer:
    """Return the answer of ``python -m module`` to ``request``, in at most ``seconds``."""
    path = os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH", ""))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            env={**environ, "PYTHONPATH": path},
            input=request,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ChildAnswer(late=True)
    except OSError as exc:
        return ChildAnswer(end=exc.strerror or str(exc))
    lines, messages = done.stdout.strip().splitlines(), done.stderr.strip().splitlines()
    return ChildAnswer((lines or [""])[-1], (messages or [f"exit code {done.returncode}"])[-1][:300])


def kept_answer(record: Path) -> str:
    """Return the text of a cached answer; empty if this user has none."""
    try:
        with record.open(encoding="utf-8") as file:
            return file.read() if os.fstat(file.fileno()).st_uid == os.getuid() else ""
    except (OSError, ValueError):
        return ""


def keep_answer(record: Path, text: str) -> None:
    """Cache an answer. An unwritable cache only costs seconds at the next start."""
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = record.with_name(f"{record.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, record)  # another start may read it meanwhile
