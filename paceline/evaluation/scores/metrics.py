"""Metrics of a generated answer against an expected one, by name. Standard library; some need a package.

``per_answer`` metrics give a number for each answer, whose mean is reported; ``corpus`` metrics give one
number for all. Third-party code may be slow: it runs in a child process, with a time limit for each answer.

``python -m paceline.evaluation.scores.metrics METRIC FILE FIRST``: each line of FILE is a JSON list [answer,
expected]. The child writes ``ready``, then for each line from FIRST on a JSON line [value, error].
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import queue
import re
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import comb
from pathlib import Path

from paceline.algorithms.rewards.builtin import marked_number
from paceline.config.registries.evaluation_metrics import METRIC_GROUPS, written_out
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import is_async, load_attr
from paceline.evaluation import codes
from paceline.launch.environment.guide_variables import current
from paceline.launch.process_spec import import_path, module_argv
from paceline.launch.program import redacted

PerAnswer = Callable[[str, str], float]
Corpus = Callable[[Sequence[str], Sequence[str]], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PASS = re.compile(r"pass@([1-9]\d*)")


@dataclass(frozen=True)
class Metric:
    """One metric. ``package``: the third-party module that it imports, and ``install`` its name on the
    package index."""

    per_answer: PerAnswer | None = None
    corpus: Corpus | None = None
    package: str = ""
    install: str = ""


def exact_match(answer: str, expected: str) -> float:
    """1 if both are equal, ignoring surrounding whitespace."""
    return float(answer.strip() == expected.strip())


def numeric(answer: str, expected: str) -> float:
    """1 if both have the same number: the one after the last ``####``, else the last one."""
    wanted = marked_number(expected, anywhere=True)
    if wanted is None:
        raise ValueError(f"the expected answer contains no number: {expected[:80]!r}")
    return float(marked_number(answer, anywhere=True) == wanted)


def f1(answer: str, expected: str) -> float:
    """F1 of the common words, ignoring case, punctuation and articles (Rajpurkar et al. 2016, SQuAD)."""
    words, wanted = _words(answer), _words(expected)
    if not words or not wanted:
        # Both empty: 1; one of them: 0. The ratio below would be 0 / 0.
        return float(words == wanted)
    return 2 * sum((Counter(words) & Counter(wanted)).values()) / (len(words) + len(wanted))


def _words(text: str) -> list[str]:
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return _ARTICLES.sub(" ", plain).split()


def _rouge(name: str) -> PerAnswer:
    def score(answer: str, expected: str) -> float:
        from rouge_score.rouge_scorer import RougeScorer

        return float(RougeScorer([name], use_stemmer=False).score(expected, answer)[name].fmeasure)

    return score


def bleu(answers: Sequence[str], expected: Sequence[str]) -> float:
    """BLEU of all answers together, 0 to 100, with sacrebleu's default tokenisation."""
    from sacrebleu import corpus_bleu

    return float(corpus_bleu(list(answers), [list(expected)]).score)


def math_verify(answer: str, expected: str) -> float:
    """1 if both are the same mathematical expression to the package math-verify."""
    from math_verify import parse, verify

    # its own time limits use signals; the process that calls this has a limit of its own
    gold = parse(expected, parsing_timeout=None)
    return float(verify(gold, parse(answer, parsing_timeout=None), timeout_seconds=None))


METRICS = {
    "exact_match": Metric(exact_match),
    "numeric": Metric(numeric),
    "f1": Metric(f1),
    "rouge1": Metric(_rouge("rouge1"), package="rouge_score", install="rouge-score"),
    "rouge2": Metric(_rouge("rouge2"), package="rouge_score", install="rouge-score"),
    "rougeL": Metric(_rouge("rougeL"), package="rouge_score", install="rouge-score"),
    "bleu": Metric(corpus=bleu, package="sacrebleu", install="sacrebleu"),
    "math_verify": Metric(math_verify, package="math_verify", install="math-verify"),
}


def own_metric(name: str) -> Metric:
    """Return the user's own ``module:function`` as a metric. Raises ConfigError if it is no such function."""
    function = load_attr(name)
    try:
        if is_async(function):
            raise TypeError("it is a coroutine function (async def)")
        inspect.signature(function).bind("answer", "expected")
    except (TypeError, ValueError) as error:
        message, remedy = f"'{name}' is no metric", "a function of (answer, expected) that returns a number"
        raise ConfigError(codes.EVALUATION_METRIC(message, "--metrics", str(error), remedy)) from error
    return Metric(function)


def passes_of(name: str) -> tuple[int, str] | None:
    """Return (k, metric of one answer) of ``pass@k`` or ``pass@k:METRIC``; None for other names."""
    match = _PASS.fullmatch(name.partition(":")[0])
    return (int(match[1]), name.partition(":")[2] or "exact_match") if match else None


def pass_at(k: int, samples: int, correct: int) -> float:
    """Return the chance that one of k of the samples is correct, unbiased (Chen et al. 2021, eq. 1)."""
    # Fewer wrong ones than k: every choice of k has a correct one.
    return 1.0 if samples - correct < k else 1.0 - comb(samples - correct, k) / comb(samples, k)


def check_metrics(names: Sequence[str], samples: int, where: str = "--metrics") -> None:
    """Raise ConfigError for unknown metrics, missing packages and a pass@k with fewer than k samples."""
    problems: list[Diagnostic] = []
    for name in written_out(names):
        passes = passes_of(name)
        if passes is not None and passes[0] > samples:
            problems.append(
                codes.EVALUATION_METRIC(
                    f"{name} needs at least {passes[0]} answers a row",
                    where,
                    f"--samples {samples}",
                    f"--samples {passes[0]} generation.temperature=0.8",
                )
            )
        inner = name if passes is None else passes[1]
        if inner in METRICS:
            metric = METRICS[inner]
            if passes is not None and metric.per_answer is None:
                message = f"{inner} is a number for all answers together, so that no answer passes by it"
                problems.append(
                    codes.EVALUATION_METRIC(message, where, name, f"pass@{passes[0]}:exact_match")
                )
            if metric.package and find_spec(metric.package) is None:
                message = f"the metric {inner} needs the package {metric.install}, which is not installed"
                remedy = f"pip install {metric.install}, or all of them: pip install 'paceline[metrics]'"
                problems.append(codes.EVALUATION_METRIC_PACKAGE(message, where, inner, remedy))
        elif ":" not in inner:
            builtin = ", ".join([*METRICS, *METRIC_GROUPS, "pass@k"])
            problems.append(
                codes.EVALUATION_METRIC(
                    "there is no metric of this name",
                    where,
                    inner,
                    f"{builtin}, or your own as module:function",
                )
            )
        else:
            own_metric(inner)
    if problems:
        raise ConfigError(*problems)


# Of the imports: a metric's package may bring a large library
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
        """Return the warning about pairs without a value; ``wheres``: the place of each."""
        if not self.failed:
            return None
        count = len(self.failed)
        share = f"{count:,} of {len(self.values):,}"
        first = "; ".join(f"{wheres[pair]}: {reason}" for pair, reason in self.failed[:3])
        return codes.EVALUATION_METRIC_FAILED(
            wheres[self.failed[0][0]], first, name=name, share=share, outcome="they count as 0"
        )


def is_corpus(name: str) -> bool:
    """Whether a metric gives one number for all answers together."""
    return name in METRICS and METRICS[name].corpus is not None


def score(name: str, pairs: Pairs, seconds: float = ANSWER_SECONDS, until: float = math.inf) -> Scores:
    """Return a metric of (answer, expected) pairs. An answer that takes too long counts as 0, and is
    reported. So do all answers left after ``until`` seconds.
    """
    metric = METRICS.get(name)
    if metric is not None and metric.per_answer is not None and not metric.package:
        return _scored_here(metric.per_answer, pairs)
    corpus = is_corpus(name)
    count = 1 if corpus else len(pairs)
    scores, end = Scores(), time.monotonic() + until
    with tempfile.TemporaryDirectory(prefix="paceline-scoring-") as folder:
        file = Path(folder) / "pairs.jsonl"
        file.write_text("".join(json.dumps(list(pair)) + "\n" for pair in pairs), encoding="utf-8")
        while len(scores.values) < count:
            limit = min(CORPUS_SECONDS, until) if corpus else seconds
            with _child(name, file, len(scores.values)) as lines:
                reason = _read(lines, scores, count, limit, end)
            left = range(len(scores.values), count)
            if left:  # the child ended, or was too slow, at the first of these
                late = time.monotonic() >= end
                reason = f"the time of {until:g} s for this metric was over" if late else reason
                given_up = left if late else left[:1]
                scores.failed += [(at, reason) for at in given_up]
                scores.values += [0.0] * len(given_up)
    return scores


def _scored_here(per_answer: PerAnswer, pairs: Pairs) -> Scores:
    """Compute a fast built-in metric without a child process."""
    scores = Scores()
    for number, pair in enumerate(pairs):
        try:
            scores.values.append(per_answer(*pair))
        except ValueError as error:
            scores.failed.append((number, str(error)[:200]))
            scores.values.append(0.0)
    return scores


def _read(lines: queue.Queue[str | None], scores: Scores, count: int, limit: float, end: float) -> str:
    """Read values until all are there, or until ``end``; return why no more came."""
    seconds = START_SECONDS
    while len(scores.values) < count:
        try:
            line = lines.get(timeout=max(0.0, min(seconds, end - time.monotonic())))
        except queue.Empty:
            return f"no answer within {seconds:g} s"
        if line is None:
            return "the process of the metric ended"
        if line.strip() != "ready":
            value, error = json.loads(line)
            if error:
                scores.failed.append((len(scores.values), error))
            scores.values.append(float(value))
        # The first line is ``ready``: from then on it is the pairs' limit.
        seconds = limit
    return ""


@contextlib.contextmanager
def _child(name: str, file: Path, first: int) -> Iterator[queue.Queue[str | None]]:
    """Yield the lines of a child process, then None; kill it at the end."""
    child = subprocess.Popen(
        module_argv("paceline.evaluation.scores.metrics", name, str(file), str(first)),
        # A metric must not read what the user types
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
        # The killed child has closed its end, so the thread comes to its own.
        reader.join()
        assert child.stdout is not None
        child.stdout.close()


@redacted
def main(argv: Sequence[str] | None = None) -> int:
    """Run as the child: write a value for each pair from FIRST on."""
    name, file, first = sys.argv[1:] if argv is None else argv
    pairs = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what a metric prints goes elsewhere
    os.dup2(2, 1)
    metric = METRICS.get(name) or own_metric(name)
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
