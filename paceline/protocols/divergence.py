"""How a student's next-token distribution is compared with a teacher's."""

from __future__ import annotations

from dataclasses import dataclass

TEACHER = "teacher"  # the field of ``Batch.tokens`` with the teacher's hidden states, [1, T, H] of its own width


@dataclass(frozen=True)
class Divergence:
    """The generalised Jensen-Shannon divergence of Agarwal et al. 2023 (arXiv:2306.13649, eq. 1 and 2), with q the teacher's distribution and p the student's,
    both softmax(logits / ``temperature``), and m = β q + (1 - β) p:

    D(q ‖ p) = β KL(q ‖ m) + (1 - β) KL(p ‖ m), 0 < β < 1; β = 0 stands for the forward KL(q ‖ p), β = 1 for the reverse KL(p ‖ q), as in TRL's GKDTrainer.
    """

    beta: float = 0.5
    temperature: float = 1.0
