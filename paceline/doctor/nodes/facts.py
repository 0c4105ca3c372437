"""What a node finds out about itself: its plan, versions, files, network, disk, limits and cards."""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import Json, leaves
from paceline.core.package import PACKAGE_VERSION
from paceline.core.rundir import RunDir
from paceline.core.security.secrets import without_secrets
from paceline.core.units import human_bytes
from paceline.doctor.inspect import Inspection, inspect
from paceline.doctor.nodes.cards import card_facts, card_findings
from paceline.doctor.nodes.digests import named_files, package_digest, source_digest
from paceline.doctor.nodes.limits import (
    environment_facts,
    limit_findings,
    memory_available,
    memory_findings,
    of_several,
)
from paceline.doctor.nodes.messages import NodeFacts
from paceline.doctor.nodes.network import interface_facts, interface_findings
from paceline.doctor.nodes.partners import addresses_of
from paceline.doctor.nodes.run_folder import folder_findings
from paceline.doctor.report import findings as machine_findings
from paceline.launch import codes as launch_codes
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import planned
from paceline.launch.process_spec import Cluster, LaunchOptions
from paceline.plan.hardware.device_files import driver_version
from paceline.plan.hardware.probe import probe
from paceline.runlog.redact import Redactor

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.plan.plan import Plan

_SHOWN = 80  # characters of a config's value
_IMPORTED = ("torch", "transformers")  # a folder on PYTHONPATH goes before what pip has installed
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
#: Findings of a start that the check makes by itself.
_OWN = (
    launch_codes.LAUNCH_LOOPBACK.name,
    launch_codes.LAUNCH_PORT_IN_USE.name,
    launch_codes.RUN_NOT_WRITABLE.name,
)


@dataclass(frozen=True)
class NodeJob:
    """The job of the config as this node reads it.

    - ``loaded``: the config, or its valid part; None if it cannot be read
    - ``cluster``: the nodes, and this one among them
    - ``findings``: errors of the config
    """

    loaded: Loaded | None
    cluster: Cluster
    findings: tuple[Diagnostic, ...]
    environ: Mapping[str, str]

    @property
    def run_folder(self) -> Path:
        """The run's folder, absolute."""
        name = self.loaded.config.run_directory() if self.loaded is not None else "outputs"
        return RunDir.at(name).root.absolute()


def open_job(
    config: Path, overrides: Sequence[str], options: LaunchOptions, environ: Mapping[str, str]
) -> NodeJob:
    """Read the config. An unreadable one is a finding, as other nodes may have a better one."""
    from paceline.config.load import NotLoaded

    wrong: tuple[Diagnostic, ...] = ()
    loaded: Loaded | None = None
    try:
        loaded = load(config, overrides, options.flags(), ruled=False)
    except NotLoaded as error:
        loaded, wrong = error.partial, error.diagnostics
    except ConfigError as error:
        wrong = error.diagnostics
    if loaded is not None:
        cluster = Cluster.of(loaded.config.launch)
    else:
        nodes, node = options.nnodes or 1, options.node_rank or 0
        cluster = Cluster(
            options.nproc or 1, nodes, node, options.master_addr or "127.0.0.1", options.master_port
        )
    return NodeJob(loaded, cluster, wrong, environ)


def plan_of(job: NodeJob) -> tuple[Plan | None, tuple[Diagnostic, ...]]:
    """Return the plan on this node, and its findings."""
    if job.loaded is None or job.findings:
        return None, job.findings
    try:
        plan, warnings = planned(job.loaded, imports=False)
    except PacelineError as error:
        return None, error.diagnostics
    return plan, warnings


def node_facts(job: NodeJob, address: str) -> NodeFacts:
    """Look at this node. ``address``: its own, on the way to node 0."""
    plan, found_by_plan = plan_of(job)
    seen = inspect(job.environ)
    route = interface_facts(address, job.environ)
    redactor = Redactor.of(job.environ)
    kept = [d for d in found_by_plan if d.code not in _OWN]
    findings = [
        *kept,
        *of_several(tuple(d for d in machine_findings(seen) if d not in kept)),
        *_limits(job, plan),
        *folder_findings(job.run_folder),
        *interface_findings(route, address, job.environ),
        *card_findings(),
    ]
    config = job.loaded.config if job.loaded is not None else None
    names = Counter(device.name for device in seen.choice.devices)
    return NodeFacts(
        versions=_versions(seen),
        environment=redactor.data(environment_facts(without_secrets(job.environ))),
        config=redactor.data(dict(_values(job))),
        files=named_files(config, job.environ) if config is not None else (),
        network=route,
        cards=card_facts(names),
        own_name=addresses_of(socket.gethostname())[0],
        address=address,
        device=plan.device if plan is not None else "cpu",
        ranks=plan.ranks_per_node if plan is not None else job.cluster.nproc,
        line=_line(seen, route, address),
        findings=tuple(redactor.diagnostic(finding).to_json() for finding in findings),
    )


def _limits(job: NodeJob, plan: Plan | None) -> Iterator[Diagnostic]:
    yield from limit_findings(plan.ranks_per_node if plan is not None else job.cluster.nproc)
    if plan is not None:
        use_cpu = plan.config.training.use_cpu
        hardware = probe(job.environ, use_cpu=use_cpu, num_nodes=plan.num_nodes).hardware
        yield from memory_findings(plan, hardware, memory_available())


def _versions(seen: Inspection) -> dict[str, str]:
    wheel = seen.sights.wheel
    nccl = next(filter(None, map(_installed, _NCCL)), "none")
    named = {
        "python": seen.python,
        "paceline": PACKAGE_VERSION,
        "paceline's files": package_digest(),
        "CUDA of torch": str(wheel.cuda or wheel.hip or "none"),
        "NCCL": nccl,
        "driver": driver_version() or "none",
        "kernel": os.uname().release,
    }
    hashes = {f"file of {name}": source_digest(name) for name in _IMPORTED}
    return {**named, **seen.packages, **hashes}


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _values(job: NodeJob) -> Iterator[tuple[str, str]]:
    """Yield the values that the ranks compare, and the number of processes, as short JSON."""
    if job.loaded is None:
        return
    config = job.loaded.config
    values: dict[str, Json] = {**leaves(config.deciding()), "launch.nproc": config.launch.nproc}
    for key, value in sorted(values.items()):
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
        yield key, text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _line(seen: Inspection, route: Mapping[str, str], address: str) -> str:
    devices = Counter(device.name for device in seen.choice.devices)
    cards = ", ".join(f"{count} × {name}" for name, count in devices.items()) or "no accelerator"
    via = f" ({', '.join(route[name] for name in ('interface', 'speed') if name in route)})" if route else ""
    return (
        f"{address}{via}: {cards}, {seen.cores} CPU cores, {human_bytes(seen.host_bytes)} of memory,"
        f" torch {seen.sights.wheel.version or 'none'}"
    )
