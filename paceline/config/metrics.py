"""What an evaluation of each algorithm yields: the names that ``metric_for_best_model`` may have. No torch; a test compares them with the algorithms."""

from __future__ import annotations

from collections.abc import Sequence

EVALUATED: dict[str, tuple[str, ...]] = {
    "sft": ("eval_loss", "eval_accuracy"),
    "reward": ("eval_loss", "eval_accuracy", "eval_margin", "eval_reward_chosen", "eval_reward_rejected", "eval_reward_mean", "eval_reward_std", "eval_calibration_error"),
    "dpo": ("eval_loss", "eval_rewards/chosen", "eval_rewards/rejected", "eval_rewards/accuracies", "eval_rewards/margins", "eval_logps/chosen", "eval_logps/rejected"),
}  # fmt: skip


def evaluation_metrics(algorithm: str, rewards: Sequence[str] = ()) -> tuple[str, ...]:
    """Names with their prefix ``eval_``; ``rewards`` are the reward functions of an algorithm that answers prompts."""
    if algorithm in EVALUATED:
        return EVALUATED[algorithm]
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
