"""What a model is for in an algorithm, and what an algorithm may ask of its root module."""

from __future__ import annotations

from enum import Enum


class Role(str, Enum):
    """The part a model plays."""

    POLICY = "policy"
    REFERENCE = "reference"
    REWARD = "reward"
    VALUE = "value"
    TEACHER = "teacher"
    CLASSIFIER = "classifier"


class Output(str, Enum):
    """A quantity that a root module's ``forward(batch, ask)`` can compute (contract 1: algorithms never see logits).

    NLL       ``nll``: fp32 scalar, SUM over labelled positions of -log p(label). The cheapest: its gradient is formed in the forward.
    LOGPROBS  ``logprobs``: fp32 [L], log p(label) at the L labelled positions, in order.
    CORRECT   ``correct``: int64 scalar, labelled positions whose argmax is the label (no gradient).
    ENTROPY   ``entropy``: fp32 [L], entropy of the next-token distribution at the labelled positions.
    SCORES    ``scores``: fp32 [D], the number that a scalar head gives each document, read at its last token (reward models).
    CLASSES   ``classes``: fp32 [D, K], the logits that a head of K classes gives each document, read at its last token.
    VALUES    ``values``: fp32 [L], the same head's number at the labelled positions, in order: what is expected before each of those tokens.
    HIDDEN    ``hidden``: [1, T, H], the trunk's last hidden states at all positions, in its dtype: of a teacher, for ``DIVERGENCE`` of another model.
    DIVERGENCE  ``divergence``: fp32 scalar, SUM over labelled positions of the divergence from the teacher's next-token distribution, whose hidden
              states are the field ``teacher`` of ``Batch.tokens`` (see ``protocols.divergence``).
    """

    NLL = "nll"
    LOGPROBS = "logprobs"
    CORRECT = "correct"
    ENTROPY = "entropy"
    SCORES = "scores"
    CLASSES = "classes"
    VALUES = "values"
    HIDDEN = "hidden"
    DIVERGENCE = "divergence"
