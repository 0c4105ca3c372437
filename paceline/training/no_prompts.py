"""Rows without prompts, of a run whose model generates answers to them. No torch."""

from __future__ import annotations

from paceline.core.diagnostics import Diagnostic
from paceline.plan.algorithms.base import AlgorithmSpec
from paceline.training import codes


def no_prompts(spec: AlgorithmSpec, found: str) -> Diagnostic:
    """Return the error for data of which no row has a prompt."""
    return codes.TRAINING_NO_PROMPTS(
        "the student should generate its own answers, but no row has a prompt",
        f"{spec.key}.{spec.own_answers}",
        found,
        f"use conversations or instructions with data.train_on: assistant, or set {spec.own_answers}: 0",
    )


def nothing_to_answer(found: str) -> Diagnostic:
    """Return the error for evaluation data of which no row has a prompt and an answer."""
    return codes.TRAINING_EVAL_GENERATE(
        "evaluations should generate answers, but no evaluation row has a prompt and an expected answer",
        "training.eval_generate",
        found,
        "use conversations, instructions or prompts with answers, and data.train_on: assistant; or set"
        " eval_generate: false",
    )
