"""An optimizer as data: what to build, not how. It is a part of the plan."""

from __future__ import annotations

from paceline.plan.parts import OptimizerSpec

__all__ = ["OptimizerSpec"]
