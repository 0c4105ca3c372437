"""The plan as text for a person: every choice with its reason, at most 100 columns wide."""

from __future__ import annotations

import textwrap

from paceline.core.units import human_count
from paceline.plan.plan import Plan

WIDTH = 100
SUBJECT_WIDTH = 33


def explain(plan: Plan) -> str:
    """The text of ``paceline plan``."""
    lines = [f"Plan {plan.digest()[:12]}: {plan.headline()}"]
    lines += _entry("model", _model(plan), "")
    lines += _entry("mesh", str(plan.mesh), "")
    lines += _entry("row", f"{plan.seq_len} tokens{', packed' if plan.packing else ''}", "")
    for decision in plan.decisions:
        mark = "" if decision.granted else "NOT GRANTED: "
        lines += _entry(decision.subject, mark + decision.choice, decision.reason)
    lines += _entry("optimizer", f"{plan.optimizer['name']}, learning rate {plan.optimizer['learning_rate']:g}", "")
    lines += _entry("run directory", plan.run_dir, "")
    return "\n".join(lines) + "\n"


def _model(plan: Plan) -> str:
    shape = plan.shape
    if shape is None:
        return "size not known before it is downloaded"
    about = "" if shape.exact else "about "
    return (
        f"{shape.model_type}, {about}{human_count(shape.num_parameters)} parameters, {about}{human_count(shape.matmul_parameters)} of them in matrix products "
        f"({shape.layers} layers of {shape.hidden_size}, {shape.heads} heads, {shape.kv_heads} of them KV, vocabulary {shape.vocab})"
    )


def _entry(subject: str, choice: str, reason: str) -> list[str]:
    """``subject  choice`` and its reason, wrapped; a long word (a path) may stick out rather than be broken."""
    text = f"{choice}: {reason}" if reason else choice
    wrapped = textwrap.wrap(text, WIDTH - SUBJECT_WIDTH - 2, break_long_words=False, break_on_hyphens=False) or [""]
    if len(subject) > SUBJECT_WIDTH - 1:
        return [f"  {subject}", *(" " * (SUBJECT_WIDTH + 2) + line for line in wrapped)]
    return [f"  {subject:<{SUBJECT_WIDTH}}{wrapped[0]}", *(" " * (SUBJECT_WIDTH + 2) + line for line in wrapped[1:])]
