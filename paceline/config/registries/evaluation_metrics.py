"""Names of the evaluation metrics of each algorithm, valid for ``metric_for_best_model``.

Imports no torch; a test compares the names with the algorithms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.core.plugins.tables import ALGORITHMS


def evaluation_metrics(
    algorithm: str, rewards: Sequence[str] = (), answers: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the metrics' names with prefix ``eval_``; ``rewards``: reward functions of an on-policy
    algorithm; ``answers``: metrics of the answers of ``eval_generate``, if it is on.
    """
    spec = ALGORITHMS.spec(algorithm)
    loss_metrics: tuple[str, ...] = spec.evaluated or (() if spec.on_policy else ("eval_loss",))
    of_answers = (*labels_of(written_out(answers)), *OF_LENGTH) if answers else ()
    if loss_metrics:
        return (*loss_metrics, *of_answers)
    of_each = (f"eval_reward/{label}" for label in reward_labels(rewards))
    return ("eval_reward", *of_each, "eval_completion_length", "eval_truncated", *of_answers)


def greater_is_better(metric: str) -> bool | None:
    """Return whether a greater value is better, by the metric's name; None if the name does not say."""
    if metric.endswith(("loss", "nll", "kl", "truncated")):
        return False
    greater = ("accuracy", "accuracies", "f1", "exact_match", "margin", "margins")
    return True if metric.endswith(greater) else None


def reward_labels(names: Sequence[str]) -> list[str]:
    """Return each reward's name in metrics: a user's function without its module; ``_2`` is added to a
    second.
    """
    labels = []
    for i, name in enumerate(names):
        before = names[:i].count(name)
        label = name.rpartition(":")[2]
        labels.append(label if not before else f"{label}_{before + 1}")
    return labels


ANSWER_METRICS = ("exact_match", "numeric", "f1", "rouge1", "rouge2", "rougeL", "bleu", "math_verify")
METRIC_GROUPS = {"rouge": ("rouge1", "rouge2", "rougeL")}
SEVERAL_ANSWERS = re.compile(r"pass@[1-9]\d*(:.*)?")  # metrics of several answers to a row
OF_LENGTH = ("eval_answer_tokens", "eval_answers_ended")


def written_out(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names with groups written out, each once."""
    return tuple(dict.fromkeys(metric for name in names for metric in METRIC_GROUPS.get(name, (name,))))


def labels_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return each metric's name in an evaluation: a function of the user's own without its module; ``_2`` is
    added to a second.
    """
    short = [name.rpartition(":")[2] for name in names]
    return tuple(
        f"eval_{label}" + (f"_{count + 1}" if count else "")
        for label, count in zip(
            short, [short[:index].count(label) for index, label in enumerate(short)], strict=True
        )
    )
