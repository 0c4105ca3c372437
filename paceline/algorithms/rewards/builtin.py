"""``Sample`` and the built-in rewards of one; none runs code from an answer.

The reward ``math_verify``: the package math-verify compares an answer with the expected expression.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from paceline.algorithms import codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")
_MARK = "####"
_ANSWER = "answer"  # the column of the expected answer


def exact_match(sample: Sample, *, ignore_case: bool = False) -> float:
    """1 if the answer equals the expected one, ignoring surrounding whitespace; else 0."""
    completion, expected = sample.completion.strip(), sample.answer.strip()
    return float(completion.casefold() == expected.casefold() if ignore_case else completion == expected)


def numeric(sample: Sample, *, anywhere: bool = False) -> float:
    """1 if the number after the last ``####`` of the answer equals that of the expected answer, else 0.

    An expected answer without the mark is a number itself. ``anywhere``: an answer without the mark is judged
    by its last number. Thousands separators, a currency sign before the number and a unit after it are
    ignored. Raises ValueError if the expected answer has no number.
    """
    expected = marked_number(sample.answer, anywhere=True)
    if expected is None:
        raise ValueError(f"the expected answer contains no number: {sample.answer[:80]!r}")
    return float(marked_number(sample.completion, anywhere=anywhere) == expected)


def marked_number(text: str, *, anywhere: bool) -> Decimal | None:
    """Return the first number after the last ``####``; without it the last one if ``anywhere``, else None."""
    _, mark, behind = text.rpartition(_MARK)
    numbers = _NUMBER.findall(behind if mark else text)
    if not numbers or not (mark or anywhere):
        return None
    try:
        return Decimal((numbers[0] if mark else numbers[-1]).replace(",", ""))
    except InvalidOperation:
        return None


def without_number(rows: Iterable[tuple[str, Mapping[str, Json]]]) -> list[str]:
    """Return the rows, by their names, whose expected answer has no number."""
    return [
        f"{name}: {answer[:80]!r}"
        for name, columns in rows
        for answer in [str(columns.get(_ANSWER, ""))]
        if answer and marked_number(answer, anywhere=True) is None
    ]


#: Rewards that compare the completion with the row's expected answer.
OF_THE_ANSWER = (exact_match, numeric)


def regex(sample: Sample, *, pattern: str, whole: bool = False) -> float:
    """1 if ``pattern`` matches in the answer (``whole``: all of it), else 0; ``.`` matches newlines too."""
    match = re.fullmatch if whole else re.search
    return float(match(pattern, sample.completion, re.DOTALL) is not None)


def tags(sample: Sample, *, names: Sequence[str] = ("think", "answer")) -> float:
    """1 if the answer consists of these tags in this order, else 0.

    Each tag is opened and closed once, with only whitespace between tags. The first one may be opened by the
    chat template, as that of DeepSeek-R1 does.
    """
    rest = sample.completion.strip()
    if names and sample.opening.rstrip().endswith(f"<{names[0]}>"):
        rest = f"<{names[0]}>{rest}"
    for name in names:
        opening, closing = f"<{name}>", f"</{name}>"
        if rest.count(opening) != 1 or rest.count(closing) != 1 or not rest.startswith(opening):
            return 0.0
        rest = rest[rest.index(closing) + len(closing) :].lstrip()
    return float(not rest)


def length(sample: Sample, *, target: int, unit: str = "tokens") -> float:
    """1 at ``target`` tokens (or ``characters``), decreasing linearly to 0 at 0 and at twice the target."""
    if unit not in ("tokens", "characters"):
        raise ValueError(f"unit {unit!r}: tokens or characters")
    size = sample.num_tokens if unit == "tokens" else len(sample.completion)
    return max(0.0, 1.0 - abs(size - target) / target)


def overlong(sample: Sample, *, max_length: int, buffer: int) -> float:
    """0 up to ``max_length - buffer`` tokens, then decreasing linearly to -1 at ``max_length`` (Yu et al.
    2025, "DAPO", eq. 13).
    """
    over = sample.num_tokens - (max_length - buffer)
    return 0.0 if over <= 0 else max(-1.0, -over / buffer)


def ended(sample: Sample) -> float:
    """1 if the answer has an end-of-sequence token, 0 if it was truncated."""
    return float(sample.ended)


@dataclass(frozen=True)
class RowCheck:
    """Finds rows that a reward cannot use. ``unusable``: (name, columns) of rows -> why, a line for each that
    is; ``finding``: of the config key and these lines.
    """

    unusable: Callable[[Iterable[tuple[str, Mapping[str, Json]]]], list[str]]
    finding: Callable[[str, str], Diagnostic]


@dataclass(frozen=True)
class Sample:
    """One answer, with all that a reward may use.

    prompt        the prompt as text
    completion    the answer without its special tokens
    columns       its row of the data set (``answer``, ``tests``, …)
    num_tokens    tokens of the answer, including the one that ends it
    ended         whether it ended by itself (false: truncated at the maximum length)
    opening       the last tokens of the rendered prompt, in which a template may open the answer (<think>)
    expected      the column ``answer`` without special tokens, as ``completion`` is
    """

    prompt: str
    completion: str
    columns: Mapping[str, Json] = field(default_factory=dict)
    num_tokens: int = 0
    ended: bool = True
    opening: str = ""
    expected: str | None = None

    @property
    def answer(self) -> str:
        """The expected answer; KeyError if the row has none."""
        return str(self.columns[_ANSWER]) if self.expected is None else self.expected


def math_verify(sample: Sample, *, after: str = "", tag: str = "") -> float | None:
    r"""1 if the LaTeX of the answer, ``\boxed{…}`` first, equals the expected expression, else 0; None where
    the expected one is no expression. ``after``: only what follows this mark is judged, and without it the
    score is 0. As TRL's ``accuracy_reward`` and, with ``after: </think>``, ``reasoning_accuracy_reward``.

    ``tag``: of answers with this tag, any expression within it is judged, and an expected one that is none
    gives 0. As ms-swift's ``accuracy``, with ``tag: answer``.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    if after and after not in sample.completion:
        return 0.0
    # its own time limits use signals; the process that calls this has a limit of its own
    tagged = within(sample.completion, tag)
    expected = parse(within(sample.answer, tag) or sample.answer, parsing_timeout=None)
    if not expected:
        return 0.0 if tag else None
    if tagged is not None:
        answer = parse(tagged, extraction_mode="first_match", parsing_timeout=None)
        return float(verify(expected, answer, timeout_seconds=None))
    written = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    answer = parse(
        sample.completion.rpartition(after)[2] if after else sample.completion,
        extraction_config=[written],
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return float(verify(expected, answer, timeout_seconds=None))


def within(text: str, tag: str) -> str | None:
    """Return what stands in the first ``<tag>`` of a text; None without one."""
    match = re.search(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, re.DOTALL) if tag else None
    return match[1].strip() if match else None


def check_package() -> None:
    """Raise ConfigError where the package is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise ConfigError(
            codes.REWARDS_OPTIONS(
                "the reward 'math_verify' needs the package math-verify, which is not installed",
                "training.rollout.rewards",
                "math_verify",
                "pip install math-verify",
            )
        )
