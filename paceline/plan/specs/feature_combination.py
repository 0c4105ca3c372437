"""``Combination``: what a run combines, for the checks of what does not go together."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.mesh import Mesh
from paceline.plan.plan import Precision
from paceline.plan.plan_sections import AdapterSpec, OptimizerSpec


@dataclass(frozen=True)
class Combination:
    """The choices for a run. ``strategy`` and ``mesh`` are None where they could not be chosen.

    ``compiled``: by torch.compile; ``full_eval``: dtypes (``bf16``, ``fp16``) requested for evaluation;
    ``pure_bf16``: weights in bfloat16 alone are requested.
    """

    precision: Precision
    optimizer: OptimizerSpec
    adapter: AdapterSpec | None
    compiled: bool
    full_eval: tuple[str, ...] = ()
    strategy: str | None = None
    mesh: Mesh | None = None
    pure_bf16: bool = False
