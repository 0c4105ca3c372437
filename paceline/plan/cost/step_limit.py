"""Whether a step, as it is predicted, fits into ``training.step_timeout``."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic
from paceline.core.units import human_seconds
from paceline.plan import codes
from paceline.plan.hardware.probe import Hardware
from paceline.plan.plan import Plan
from paceline.plan.timeouts import STEP_KEY


def step_limit_warning(plan: Plan, hardware: Hardware) -> Iterator[Diagnostic]:
    """Yield a warning if a step is predicted to last longer than ``step_timeout``: no rank would be late."""
    limit = plan.config.training.step_timeout
    if limit is None or plan.world_size == 1:
        return
    from paceline.plan.cost.from_plan import predicted_step

    seconds = predicted_step(plan, hardware)
    if seconds is not None and seconds > limit:
        yield codes.PLAN_STEP_TIMEOUT(
            STEP_KEY,
            f"step_timeout: {limit} s",
            human_seconds=human_seconds(seconds),
            hint=f"set step_timeout: {max(60, round(5 * seconds))}, or leave it empty",
        )
