"""Rows without prompts, of a run whose model generates answers to them. No torch."""

from __future__ import annotations

from paceline.core.diagnostics import Diagnostic
from paceline.plan.algorithms.spec import AlgorithmSpec
from paceline.training import codes


def no_prompts(spec: AlgorithmSpec, found: str) -> Diagnostic:
    """Return the error for data of which no row has a prompt."""
    return codes.TRAINING_NO_PROMPTS(f"{spec.key}.{spec.own_answers}", found, own_answers=spec.own_answers)


def nothing_to_answer(found: str) -> Diagnostic:
    """Return the error for evaluation data of which no row has a prompt and an answer."""
    return codes.TRAINING_EVAL_GENERATE("training.eval_generate", found)
