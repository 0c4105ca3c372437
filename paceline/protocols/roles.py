"""The roles of models in an algorithm, and the outputs that an algorithm can require of a root module."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(str, Enum):
    """The role of a model in an algorithm."""

    POLICY = "policy"
    REFERENCE = "reference"
    REWARD = "reward"
    VALUE = "value"
    TEACHER = "teacher"
    CLASSIFIER = "classifier"
    EMBEDDING = "embedding"


class Output(str, Enum):
    """An output of a root module's ``forward(batch, required)`` (contract 1: algorithms never handle logits).

    NLL        ``nll``: fp32 scalar, SUM over labelled positions of -log p(label). The cheapest: its gradient
               is computed in the forward.
    LOGPROBS   ``logprobs``: fp32 [L], log p(label) at the L labelled positions, in order.
    CORRECT    ``correct``: int64 scalar, labelled positions whose argmax is the label (no gradient).
    ENTROPY    ``entropy``: fp32 [L], entropy of the next-token distribution at the labelled positions.
    LIKELIEST_ENTROPY ``likeliest_entropy``: fp32 [L], entropy of the 20 likeliest next tokens alone, their
               probabilities scaled to 1 (no gradient); not together with ``ENTROPY``.
    SCORES     ``scores``: fp32 [D], a scalar head's output at the last token of each document (reward
               models).
    CLASSES    ``classes``: fp32 [D, K], the logits of a head with K classes at the last token of each
               document.
    VALUES     ``values``: fp32 [L], a scalar head's output at the labelled positions, in order: the expected
               return before each of those tokens.
    HIDDEN     ``hidden``: [1, T, H], the trunk's last hidden states at all positions, in its dtype: of a
               teacher, for ``DIVERGENCE`` of the student; of an embedding model, whose documents they stand
               for.
    DIVERGENCE ``divergence``: fp32 scalar, SUM over labelled positions of the divergence from the teacher's
               next-token distribution; its hidden states are the field ``teacher`` of ``Batch.tokens`` (see
               ``protocols.roles``).
    ROUTER     ``router``: fp32 [2, D, E], of a mixture of E experts by document: how often its tokens chose
               each expert (no gradient), and the probabilities that the routers gave it; summed over the
               document's tokens and all layers.
    """

    NLL = "nll"
    LOGPROBS = "logprobs"
    CORRECT = "correct"
    ENTROPY = "entropy"
    LIKELIEST_ENTROPY = "likeliest_entropy"
    SCORES = "scores"
    CLASSES = "classes"
    VALUES = "values"
    HIDDEN = "hidden"
    DIVERGENCE = "divergence"
    ROUTER = "router"


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
