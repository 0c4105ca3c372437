"""Metrics of a generated answer against an expected one, by name. Standard library; some need a package.

``per_answer`` metrics give a number for each answer, whose mean is reported; ``corpus`` ones one for all.
"""

from __future__ import annotations

import inspect
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import comb

from paceline.algorithms.rewards.builtin import marked_number
from paceline.config.registries.evaluation_metrics import METRIC_GROUPS, written_out
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.plugins.registry import is_async, load_attr
from paceline.evaluation import codes

PerAnswer = Callable[[str, str], float]
Corpus = Callable[[Sequence[str], Sequence[str]], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PASS = re.compile(r"pass@([1-9]\d*)")


@dataclass(frozen=True)
class Metric:
    """One metric. ``package``: what it imports beyond ours, and ``install`` its name on the index."""

    per_answer: PerAnswer | None = None
    corpus: Corpus | None = None
    package: str = ""
    install: str = ""


def exact_match(answer: str, expected: str) -> float:
    """1 if both are equal but for surrounding whitespace."""
    return float(answer.strip() == expected.strip())


def numeric(answer: str, expected: str) -> float:
    """1 if the number behind the last ``####``, else the last number, is the expected one's."""
    wanted = marked_number(expected, anywhere=True)
    if wanted is None:
        raise ValueError(f"the expected answer contains no number: {expected[:80]!r}")
    return float(marked_number(answer, anywhere=True) == wanted)


def f1(answer: str, expected: str) -> float:
    """F1 of the words both have, without case, punctuation and articles (Rajpurkar et al. 2016, SQuAD)."""
    given, wanted = _words(answer), _words(expected)
    if not given or not wanted:
        return float(given == wanted)
    same = sum((Counter(given) & Counter(wanted)).values())
    return 2 * same / (len(given) + len(wanted))


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


def metric_named(name: str) -> Metric:
    """Return a built-in metric, or a function of the user's own named ``module:function``."""
    return METRICS[name] if name in METRICS else own_metric(name)


def own_metric(name: str) -> Metric:
    """Return the user's own ``module:function`` as a metric. Raises ConfigError if it is no such function."""
    found = load_attr(name)
    try:
        if is_async(found):
            raise TypeError("it is a coroutine function (async def)")
        inspect.signature(found).bind("answer", "expected")
    except (TypeError, ValueError) as error:
        what, hint = f"'{name}' is no metric", "a function of (answer, expected) that returns a number"
        raise ConfigError(codes.EVALUATION_METRIC(what, "--metrics", str(error), hint)) from error
    return Metric(found)


def passes_of(name: str) -> tuple[int, str] | None:
    """Return (k, metric of one answer) of ``pass@k`` or ``pass@k:METRIC``; None for other names."""
    match = _PASS.fullmatch(name.partition(":")[0])
    return (int(match[1]), name.partition(":")[2] or "exact_match") if match else None


def pass_at(k: int, samples: int, correct: int) -> float:
    """Return the chance that one of k of the samples is correct, unbiased (Chen et al. 2021, eq. 1)."""
    return 1.0 if samples - correct < k else 1.0 - comb(samples - correct, k) / comb(samples, k)


def check_metrics(names: Sequence[str], samples: int, where: str = "--metrics") -> None:
    """Raise ConfigError for unknown metrics, missing packages and a pass@k with fewer than k samples."""
    found: list[Diagnostic] = []
    for name in written_out(names):
        passes = passes_of(name)
        if passes is not None and passes[0] > samples:
            what = f"{name} needs at least {passes[0]} answers a row"
            hint = f"--samples {passes[0]} generation.temperature=0.8"
            found.append(codes.EVALUATION_METRIC(what, where, f"--samples {samples}", hint))
        inner = name if passes is None else passes[1]
        if inner in METRICS:
            metric = METRICS[inner]
            if passes is not None and metric.per_answer is None:
                what = f"{inner} is a number for all answers together, so that no answer passes by it"
                found.append(codes.EVALUATION_METRIC(what, where, name, f"pass@{passes[0]}:exact_match"))
            if metric.package and find_spec(metric.package) is None:
                what = f"the metric {inner} needs the package {metric.install}, which is not installed"
                hint = f"pip install {metric.install}, or all of them: pip install 'paceline[metrics]'"
                found.append(codes.EVALUATION_METRIC_PACKAGE(what, where, inner, hint))
        elif ":" not in inner:
            known = ", ".join([*METRICS, *METRIC_GROUPS, "pass@k"])
            what = "there is no metric of this name"
            hint = f"{known}, or your own as module:function"
            found.append(codes.EVALUATION_METRIC(what, where, inner, hint))
        else:
            own_metric(inner)
    if found:
        raise ConfigError(*found)
