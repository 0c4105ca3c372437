"""Metrics are computed in a child process with a time limit for each answer: other people's code may be slow.

``python -m paceline.evaluation.scores.metric_process METRIC FILE FIRST``: FILE has one JSON list
[answer, expected] a line; the child writes ``ready``, and from line FIRST on a JSON line [value, error] each.
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
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.evaluation import codes
from paceline.evaluation.scores.metrics import METRICS, PerAnswer, metric_named
from paceline.launch.environment.guide_variables import current
from paceline.launch.process_spec import import_path, module_argv
from paceline.launch.redacted_output import redacted

START_SECONDS = 120.0
ANSWER_SECONDS = 10.0
CORPUS_SECONDS = 600.0


Pairs = Sequence[tuple[str, str]]  # (answer, expected)


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
        share = f"{count:,} of {len(self.values):,}"
        first = "; ".join(f"{wheres[at]}: {reason}" for at, reason in self.failed[:3])
        return codes.EVALUATION_METRIC_FAILED(
            wheres[self.failed[0][0]], first, name=name, share=share, outcome="they count as 0"
        )


def is_corpus(name: str) -> bool:
    """Whether a metric gives one number for all answers together."""
    return name in METRICS and METRICS[name].corpus is not None


def score(name: str, pairs: Pairs, seconds: float = ANSWER_SECONDS, until: float = math.inf) -> Scores:
    """Return a metric of (answer, expected) pairs. An answer over its time counts as 0, and is named; so do
    all that are left after ``until`` seconds.
    """
    own = METRICS.get(name)
    if own is not None and own.per_answer is not None and not own.package:
        return _scored_here(own.per_answer, pairs)
    corpus = is_corpus(name)
    count = 1 if corpus else len(pairs)
    found, end = Scores(), time.monotonic() + until
    with tempfile.TemporaryDirectory(prefix="paceline-scoring-") as folder:
        file = Path(folder) / "pairs.jsonl"
        file.write_text("".join(json.dumps(list(pair)) + "\n" for pair in pairs), encoding="utf-8")
        while len(found.values) < count:
            limit = min(CORPUS_SECONDS, until) if corpus else seconds
            with _child(name, file, len(found.values)) as lines:
                reason = _read(lines, found, count, limit, end)
            left = range(len(found.values), count)
            if left:  # the child ended, or was too slow, at the first of these
                late = time.monotonic() >= end
                reason = f"the time of {until:g} s for this metric was over" if late else reason
                given_up = left if late else left[:1]
                found.failed += [(at, reason) for at in given_up]
                found.values += [0.0] * len(given_up)
    return found


def _scored_here(per_answer: PerAnswer, pairs: Pairs) -> Scores:
    """Return a metric of our own, which is quick, without a child."""
    found = Scores()
    for at, pair in enumerate(pairs):
        try:
            found.values.append(per_answer(*pair))
        except ValueError as error:
            found.failed.append((at, str(error)[:200]))
            found.values.append(0.0)
    return found


def _read(lines: queue.Queue[str | None], found: Scores, count: int, limit: float, end: float) -> str:
    """Take values until all are there, or until ``end``; return why no more came."""
    seconds = START_SECONDS
    while len(found.values) < count:
        try:
            line = lines.get(timeout=max(0.0, min(seconds, end - time.monotonic())))
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
        module_argv("paceline.evaluation.scores.metric_process", name, str(file), str(first)),
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
