"""The specification of an optimizer (name and arguments), which is part of the plan."""

from __future__ import annotations

from paceline.plan.plan_sections import OptimizerSpec

__all__ = ["OptimizerSpec"]
