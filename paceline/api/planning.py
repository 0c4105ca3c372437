"""``paceline.plan``: what a training would do here, or on named hardware, and why; nothing is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.api.arguments import ConfigLike, Overrides, read, source_of
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import JsonObject

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.plan.cost.report import Forecast
    from paceline.plan.hardware.device_catalogue import AcceleratorCluster
    from paceline.plan.plan import Plan


@dataclass(frozen=True)
class PlannedRun:
    """A plan with its warnings and forecast.

    - ``plan``: every decision with its reason
    - ``warnings``: findings that do not stop a start
    - ``forecast``: memory and speed by layout, or None if too little is known about the hardware

    ``str`` is what ``paceline plan`` prints.
    """

    plan: Plan
    warnings: tuple[Diagnostic, ...]
    forecast: Forecast | None
    text: str

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> JsonObject:
        """Return the plan as ``paceline plan --json`` prints it."""
        forecast: JsonObject = {"forecast": self.forecast.to_json()} if self.forecast else {}
        return self.plan.to_json() | forecast

    def _repr_html_(self) -> str:
        from paceline.api.html import plan_html

        return plan_html(self)


def plan(
    config: ConfigLike,
    *,
    overrides: Overrides | None = None,
    hardware: str | None = None,
    nproc: int | None = None,
    imports: bool = True,
) -> PlannedRun:
    """Return the plan of a config for this machine, or for ``hardware`` (``16xH100``, or a YAML file).

    ``nproc``: processes on this node; ``imports``: also run the checks that need imports, in a separate
    process. Raises ConfigError with everything that would stop a start.
    """
    from paceline.plan.hardware.device_catalogue import cluster_of

    source = source_of(config, overrides).with_overrides({"launch.nproc": nproc})
    cluster = cluster_of(hardware) if hardware else None
    return planned_run(read(source, ruled=hardware is not None), cluster, imports=imports)


def planned_run(loaded: Loaded, cluster: AcceleratorCluster | None, *, imports: bool) -> PlannedRun:
    """Plan a config that has been loaded, for ``cluster`` or for this machine. Raises ConfigError."""
    from paceline.launch.prediction_ledger import expected_here
    from paceline.launch.preflight.forecast import forecast_of_plan
    from paceline.launch.preflight.plan_job import located, planned
    from paceline.plan.cost.report import text
    from paceline.plan.explain import explain

    run_plan, warnings = planned(loaded, cluster=cluster, imports=imports)
    with located(loaded):
        forecast = forecast_of_plan(run_plan, cluster)
        here = "" if forecast or cluster else expected_here(run_plan)
    page = explain(run_plan) + ("\n" + text(forecast) if forecast else here)
    return PlannedRun(run_plan, (*loaded.notes, *warnings), forecast, page)
