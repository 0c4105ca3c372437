"""What each algorithm needs: the kind of rows it reads."""

from __future__ import annotations

ON_POLICY = frozenset({"ppo", "grpo"})
PAIRWISE = frozenset({"reward", "dpo"})


def reads_pairs(algorithm: str) -> bool:
    """Whether rows are preference pairs: two documents that stay together."""
    return algorithm in PAIRWISE


def reads_prompts(algorithm: str) -> bool:
    """Whether rows are prompts that the model answers itself in training."""
    return algorithm in ON_POLICY
