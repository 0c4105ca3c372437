"""What ``custom_algorithm.Focal`` is, for rules and planner: what its rows are, what the model must
compute, its options with their defaults.

A spec is a ``paceline.extend.AlgorithmSpec`` and is imported where the plan is made: this
module imports no torch, and names the class that does the work. ``rows`` is ``documents``, ``pairs``,
``labelled``, ``classified``, ``prompts``, or a kind of one's own as ``module:KIND``
(``paceline.extend.RowKind``).
"""

from __future__ import annotations

from paceline.extend import AlgorithmSpec

SPEC = AlgorithmSpec(
    rows="documents",
    outputs=("logprobs",),
    evaluated=("eval_loss",),
    options={"gamma": 2.0},
    implementation="custom_algorithm:Focal",
)
