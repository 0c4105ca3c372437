"""The forecast of a config's plan: memory and speed of the layout it has chosen, and of the others."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.schema import Config
from paceline.core.package import PACKAGE_VERSION
from paceline.core.security.secrets import without_secrets
from paceline.launch.calibrate_site import coefficients_of

if TYPE_CHECKING:
    from paceline.plan.cost.report import Forecast
    from paceline.plan.hardware.device_catalogue import AcceleratorCluster
    from paceline.plan.plan import Plan


def forecast_of_plan(plan: Plan, cluster: AcceleratorCluster | None) -> Forecast | None:
    """Forecast a config's job along with the layout its plan has chosen.

    ``cluster`` None means this machine, corrected by its ledger. None on a CPU, an unlisted card, or for a
    model of unknown size.
    """
    from paceline.core.plugins.tables import CHOOSERS
    from paceline.plan.cost.from_plan import cluster_of_hardware, of_length, planned_candidate, search_spec_of
    from paceline.plan.cost.report import forecast
    from paceline.plan.hardware.device_kinds import is_accelerator
    from paceline.plan.hardware.probe import Hardware

    if not is_accelerator(plan.device):
        return None
    corrections, source = (1.0, 1.0), ""
    if cluster is None:
        from paceline.launch.prediction_ledger import corrections_here
        from paceline.plan.hardware.probe import probe_hardware

        probed: Hardware = probe_hardware(os.environ)
        cluster = cluster_of_hardware(probed, plan.num_nodes)
        corrections, source = corrections_here(probed)
    elif site := coefficients_of(cluster.machine.name):
        corrections, source = (site.memory_factor, site.time_factor), site.source(PACKAGE_VERSION)
    spec = search_spec_of(plan, cluster, corrections) if cluster else None
    if spec is None:
        return None
    spec = replace(of_length(spec, plan, epoch_lengths(plan.config)), corrected_by=source)
    name = str(plan.config.model.name_or_path or plan.shape.model_type if plan.shape else "model")
    chooser = CHOOSERS.get(plan.config.training.distributed_strategy)
    by_size = chooser is not None and not chooser.searches
    return forecast(name, spec, planned_candidate(plan, spec), plan.strategy_reason if by_size else "")


SECONDS = 20.0  # time limit: a plan does not wait longer


def epoch_lengths(config: Config) -> tuple[int, int] | None:
    """Return (rows, tokens) of an epoch of this config's data; None if not prepared or not readable."""
    from paceline.core.package import cache_folder
    from paceline.launch.child import run_job
    from paceline.plan.algorithms.spec import algorithm_spec

    tokenizer = config.model.tokenizer or config.model.name_or_path
    measured = algorithm_spec(config.training.algorithm).measured
    if not measured or not tokenizer or not Path(tokenizer).expanduser().is_dir():
        return None  # the child would find the same, a second later
    cache = Path(config.data.cache_dir or cache_folder(os.environ)).expanduser()
    if not (cache / "prepared").is_dir():
        return None
    job = {"config": config.to_json(), "cache": str(cache)}
    lengths, ended = run_job(
        "paceline.data.prepare.epoch_lengths", job, SECONDS, environ=without_secrets(os.environ)
    )
    return (int(lengths[0]), int(lengths[1])) if lengths and not ended else None
