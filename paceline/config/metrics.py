"""What an evaluation of each algorithm yields: the names that ``metric_for_best_model`` may have. No torch; a test compares them with the algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.tables import ALGORITHMS


def evaluation_metrics(algorithm: str, rewards: Sequence[str] = ()) -> tuple[str, ...]:
    """Names with their prefix ``eval_``; ``rewards`` are the reward functions of an algorithm that answers prompts."""
    spec = ALGORITHMS.spec(algorithm)
    own: tuple[str, ...] = spec.evaluated or (() if spec.on_policy else ("eval_loss",))
    if own:
        return own
    of_each = (f"eval_reward/{label}" for label in reward_labels(rewards))
    return ("eval_reward", *of_each, "eval_completion_length", "eval_truncated")


def reward_labels(names: Sequence[str]) -> list[str]:
    """How metrics call each reward: a function of one's own by its name alone, the second of one name with ``_2``."""
    labels = []
    for i, name in enumerate(names):
        before = names[:i].count(name)
        label = name.rpartition(":")[2]
        labels.append(label if not before else f"{label}_{before + 1}")
    return labels
