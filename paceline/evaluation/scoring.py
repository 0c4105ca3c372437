"""Metrics are computed in a child process with a time limit for each answer: other people's code may be slow.

``python -m paceline.evaluation.scoring METRIC FILE FIRST``: FILE has one JSON list [answer, expected] a line;
the child writes ``ready``, and from line FIRST on a JSON line [value, error] for each.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.evaluation import codes
from paceline.evaluation.metrics import METRICS, metric_named
from paceline.launch.environ import current
from paceline.launch.outlet import redacted
from paceline.launch.spec import import_path, module_argv

START_SECONDS = 120.0
ANSWER_SECONDS = 10.0
CORPUS_SECONDS = 600.0


@dataclass
class Scores:
    """``values``: of each pair (one in all for a corpus metric); ``failed``: (pair, reason), counted as 0."""

    values: list[float] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    def warning(self, name: str, wheres: Sequence[str]) -> Diagnostic | None:
        """Return what is to be said about pairs without a value; ``wheres``: the place of each."""
        if not self.failed:
            return None
        count = len(self.failed)
        what = (
            f"the metric {name} gave no value for {count:,} of {len(self.values):,} answers; they count as 0"
        )
        first = "; ".join(f"{wheres[at]}: {reason}" for at, reason in self.failed[:3])
        return codes.EVALUATION_METRIC_FAILED(
            what, wheres[self.failed[0][0]], first, severity=Severity.WARNING
        )


def score(name: str, pairs: Sequence[tuple[str, str]], seconds: float = ANSWER_SECONDS) -> Scores:
    """Return a metric of (answer, expected) pairs. An answer over its time counts as 0, and is named."""
    corpus = name in METRICS and METRICS[name].corpus is not None
    count = 1 if corpus else len(pairs)
    found = Scores()
    with tempfile.TemporaryDirectory(prefix="paceline-scoring-") as folder:
        file = Path(folder) / "pairs.jsonl"
        file.write_text("".join(json.dumps(list(pair)) + "\n" for pair in pairs), encoding="utf-8")
        while len(found.values) < count:
            limit = CORPUS_SECONDS if corpus else seconds
            with _child(name, file, len(found.values)) as lines:
                reason = _read(lines, found, count, limit)
            if len(found.values) < count:  # the child ended, or was too slow, at this one
                found.failed.append((len(found.values), reason))
                found.values.append(0.0)
    return found


def _read(lines: queue.Queue[str | None], found: Scores, count: int, limit: float) -> str:
    """Take values until all are there; return why no more came."""
    seconds = START_SECONDS
    while len(found.values) < count:
        try:
            line = lines.get(timeout=seconds)
        except queue.Empty:
            return f"no answer within {seconds:g} s"
        if line is None:
            return "the process of the metric ended"
        if line.strip() != "ready":
            value, error = json.loads(line)
            if error:
                found.failed.append((len(found.values), error))
            found.values.append(float(value))
        seconds = limit
    return ""


@contextlib.contextmanager
def _child(name: str, file: Path, first: int) -> Iterator[queue.Queue[str | None]]:
    """Yield the lines that a child writes, None behind the last; it is killed at the end."""
    child = subprocess.Popen(
        module_argv("paceline.evaluation.scoring", name, str(file), str(first)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**current(), **import_path(current())},
    )
    lines: queue.Queue[str | None] = queue.Queue()

    def forward() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=forward, daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        child.kill()
        child.wait()
        reader.join()
        assert child.stdout is not None
        child.stdout.close()


@redacted
def main(argv: Sequence[str] | None = None) -> int:
    """Be the child: write a value for each pair from FIRST on."""
    name, file, first = sys.argv[1:] if argv is None else argv
    pairs = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what a metric prints goes elsewhere
    os.dup2(2, 1)
    metric = metric_named(name)
    print("ready", file=out, flush=True)
    if metric.corpus is not None:
        print(json.dumps([metric.corpus(*zip(*pairs, strict=True)), ""]), file=out, flush=True)
        return 0
    assert metric.per_answer is not None
    for answer, expected in pairs[int(first) :]:
        try:
            number = float(metric.per_answer(answer, expected))
            value = [number, ""] if math.isfinite(number) else [0.0, f"the metric returned {number}"]
        except Exception as error:  # noqa: BLE001  (a metric may raise anything)
            value = [0.0, f"{type(error).__name__}: {error}"[:200]]
        print(json.dumps(value), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
