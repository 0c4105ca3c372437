"""The reward ``math_verify``: the package math-verify compares an answer with the expected expression."""

from __future__ import annotations

import importlib.util
import re

from paceline.algorithms import codes
from paceline.algorithms.rewards.builtin import Sample
from paceline.core.errors import ConfigError


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
