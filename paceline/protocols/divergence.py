"""The divergence between a student's and a teacher's next-token distributions."""

from __future__ import annotations

from dataclasses import dataclass

# the field of ``Batch.tokens`` with the teacher's hidden states, [1, T, H] of its own width
TEACHER = "teacher"


@dataclass(frozen=True)
class Divergence:
    """The generalized Jensen-Shannon divergence of Agarwal et al. 2023 (arXiv:2306.13649, eq. 1 and 2).

    With q the teacher's distribution and p the student's, both softmax(logits / ``temperature``), and m = β q
    + (1 - β) p: D(q ‖ p) = β KL(q ‖ m) + (1 - β) KL(p ‖ m) for 0 < β < 1. β = 0 means the forward KL(q ‖ p),
    β = 1 the reverse KL(p ‖ q), as in TRL's GKDTrainer.
    """

    beta: float = 0.5
    temperature: float = 1.0
