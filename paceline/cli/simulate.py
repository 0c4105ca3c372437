"""``paceline plan --simulate``: run a plan on fake tensors in a subprocess.

The plan is a config's, or the fastest layout of a named model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.cli import codes
from paceline.core.errors import ConfigError
from paceline.core.security.secrets import without_secrets

if TYPE_CHECKING:
    from paceline.core.json_types import Json, JsonObject
    from paceline.plan.cost.report import Forecast
    from paceline.plan.cost.search import Candidate
    from paceline.plan.cost.simulation_check import Compared, Simulation
    from paceline.plan.hardware.device_catalogue import AcceleratorCluster
    from paceline.plan.plan import Plan


@dataclass(frozen=True)
class SimulationResult:
    """A plan's terms, simulated and in closed form, with the reason for any that were not simulated."""

    layout: str
    rows: list[Compared]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain JSON types."""
        return {
            "layout": self.layout,
            "rows": [row.to_json() for row in self.rows],
            "not_simulated": self.reason,
        }

    def text(self) -> str:
        """Return the comparison as text for a person."""
        from paceline.plan.cost.simulation_check import table

        return f"Simulation of {self.layout}\n{table(self.rows, self.reason)}"


def simulated_plan(plan: Plan, config: Mapping[str, Any], candidate: Candidate) -> SimulationResult:
    """Simulate ``plan`` on fake tensors and compare it with ``candidate``, its closed form.

    Raises ConfigError (``plan.no_torch``) without torch.
    """
    from paceline.plan.cost.memory.peak import chunk_of
    from paceline.plan.cost.simulation_check import compare, partly, why_not

    layout = f"{plan.strategy}, {plan.mesh}, micro-batch {plan.batch.micro_batch} of {plan.seq_len} tokens"
    reason = why_not(plan)
    job: JsonObject = {
        "plan": plan.to_json(),
        "config": dict(config),
        "head_chunk_bytes": chunk_of(candidate.work),
    }
    answer: Simulation = {} if reason else _run_child(job)
    if "missing" in answer:
        raise ConfigError(codes.PLAN_NO_TORCH("--simulate", answer["missing"]))
    reason = reason or answer.get("failed", "") or partly(plan)
    return SimulationResult(layout, compare(plan, candidate, answer), reason)


def _run_child(job: Mapping[str, Json]) -> Simulation:
    from paceline.launch.child import run_job

    environ = {**without_secrets(os.environ), "PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": ""}
    simulation: Simulation | None
    simulation, ended = run_job("paceline.simulate", job, environ=environ)
    return simulation or {"failed": f"the simulation died with {ended}"[:300]}


def simulated_config(
    plan: Plan, forecast: Forecast | None, cluster: AcceleratorCluster | None
) -> SimulationResult:
    """Simulate a config's plan; the closed form is the forecast's, or an estimate for this machine's CPU.

    Raises ConfigError when the plan has no closed form, or the model's config is not available.
    """
    from paceline.plan.cost.from_plan import cluster_of_cpu, planned_candidate, search_spec_of
    from paceline.plan.hardware.probe import probe_hardware
    from paceline.plan.model.model_catalogue import known_models, named_config
    from paceline.plan.model.read_config import model_config

    candidate = forecast.own if forecast else None
    if candidate is None:
        hardware = probe_hardware(os.environ, use_cpu=plan.device == "cpu", num_nodes=plan.num_nodes)
        spec = search_spec_of(plan, cluster or cluster_of_cpu(hardware, plan.world_size // plan.num_nodes))
        candidate = planned_candidate(plan, spec) if spec else None
    if candidate is None:
        raise ConfigError(codes.PLAN_NO_CLOSED_FORM("--simulate", plan.strategy))
    model = plan.config.model
    try:
        config: Mapping[str, Any] = model_config(model, os.environ)
    except ConfigError:
        config = named_config(model.name_or_path or next(iter(known_models())))
    return simulated_plan(plan, config, candidate)


def simulated_model(forecast: Forecast, lora: int | None, bits: int | None) -> SimulationResult:
    """Simulate the fastest layout of a forecast that fits and that torch can simulate."""
    from paceline.plan.cost.from_plan import planned_candidate, search_spec_of
    from paceline.plan.cost.simulation_check import why_not
    from paceline.plan.model.model_catalogue import named_config

    config = named_config(forecast.name)
    ranked = sorted((c for c in forecast.rows if c.fits), key=lambda c: c.step) or list(forecast.rows)
    plans = [(c, _plan_of(c, forecast, config, lora, bits)) for c in ranked]
    candidate, plan = next(((c, p) for c, p in plans if not why_not(p)), plans[0])
    spec = search_spec_of(plan, forecast.spec.cluster)
    closed = (planned_candidate(plan, spec) if spec else None) or candidate
    result = simulated_plan(plan, config, closed)
    if candidate is ranked[0]:
        return result
    faster = f"{ranked[0].strategy}, which is faster: {why_not(plans[0][1])}"
    return replace(result, reason="; ".join(filter(None, (faster, result.reason))))


def _plan_of(
    candidate: Candidate, forecast: Forecast, config: Mapping[str, Any], lora: int | None, bits: int | None
) -> Plan:
    from paceline.config.schema import Config
    from paceline.plan.cost.report import settings
    from paceline.plan.strategies.spec import Job
    from paceline.rules.planning import make_plan

    values: dict[str, Any] = {
        "model": {"config": dict(config), "tokenizer": "none"},
        "data": {"train": "none.jsonl", "max_length": forecast.spec.seq_len},
        "training": settings(candidate),
    }
    if lora is not None:
        values["lora"] = {"r": lora, **({"quantization_bit": bits} if bits else {})}
    config_section, cluster = Config.model_validate(values), forecast.spec.cluster
    return make_plan(
        Job(config_section, cluster.hardware(), cluster.cards, cluster.nodes, "torchrun", "none")
    )
