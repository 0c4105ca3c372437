"""What each algorithm needs: the kind of rows it reads."""

from __future__ import annotations

PAIRWISE = frozenset({"reward", "dpo"})


def reads_pairs(algorithm: str) -> bool:
    """Whether rows are preference pairs: two documents that stay together."""
    return algorithm in PAIRWISE
