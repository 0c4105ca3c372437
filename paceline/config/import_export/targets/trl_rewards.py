"""Paceline's rewards with TRL's signature: from answers and columns to one number each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

Answer = str | Sequence[Mapping[str, str]]
Columns = Sequence[str]
Reward = Callable[..., list[float]]


def _text(completion: Answer) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def exact_match(ignore_case: bool = False) -> Reward:
    """1 for the expected answer, ignoring surrounding spaces."""

    def score(completions: Sequence[Answer], answer: Sequence[str], **_: Columns) -> list[float]:
        pairs = [(_text(c).strip(), str(a).strip()) for c, a in zip(completions, answer, strict=True)]
        return [float(c.casefold() == a.casefold() if ignore_case else c == a) for c, a in pairs]

    score.__name__ = "exact_match"
    return score


def regex(pattern: str, whole: bool = False) -> Reward:
    """1 where the pattern matches."""

    def score(completions: Sequence[Answer], **_: Columns) -> list[float]:
        match = re.fullmatch if whole else re.search
        return [float(match(pattern, _text(c), re.DOTALL) is not None) for c in completions]

    score.__name__ = "regex"
    return score


def overlong(max_length: int, buffer: int) -> Reward:
    """0, then down to -1 from ``max_length - buffer`` tokens to ``max_length``."""

    def score(completion_ids: Sequence[Sequence[int]], **_: Columns) -> list[float]:
        over = [len(ids) - (max_length - buffer) for ids in completion_ids]
        return [0.0 if n <= 0 else max(-1.0, -n / buffer) for n in over]

    score.__name__ = "overlong"
    return score


def length(target: int, unit: str = "tokens") -> Reward:
    """1 at the target length, decreasing linearly on both sides."""

    def score(
        completions: Sequence[Answer], completion_ids: Sequence[Sequence[int]], **_: Columns
    ) -> list[float]:
        sizes = (
            [len(ids) for ids in completion_ids] if unit == "tokens" else [len(_text(c)) for c in completions]
        )
        return [max(0.0, 1.0 - abs(size - target) / target) for size in sizes]

    score.__name__ = "length"
    return score


REWARDS = ("exact_match", "regex", "overlong", "length")
