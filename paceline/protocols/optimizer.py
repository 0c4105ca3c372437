"""The specification of an optimizer (name and arguments), which is part of the plan."""

from __future__ import annotations

from paceline.plan.parts import OptimizerSpec

__all__ = ["OptimizerSpec"]
