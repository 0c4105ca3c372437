"""Checks of this machine other than its hardware: rendezvous address, port, run directory, packages, hub."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.config.source import DEFAULTS
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.security.secrets import without_secrets
from paceline.launch import codes

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.schema import Config
    from paceline.core.rundir import RunDir
    from paceline.launch.process_spec import Cluster
    from paceline.plan.hardware.probe import Hardware

#: Caused by another run, which may have ended by the time this one starts: warnings while planning.
OF_ANOTHER_RUN = (codes.RUN_EXISTS.name, codes.RUN_IN_USE.name, codes.LAUNCH_PORT_IN_USE.name)


def of_machine(
    loaded: Loaded, hardware: Hardware, processes: int, known: bool, run: RunDir, *, met: bool = False
) -> list[Diagnostic]:
    """Return the diagnostics of this machine.

    ``known``: the model's config.json is on this machine; ``met``: a launcher has already given the processes
    their rendezvous address.
    """
    from paceline.launch.preflight.hub import hub_findings
    from paceline.plan.packages import check_packages

    config = loaded.config
    found = [
        *meeting_place(loaded, processes, met=met),
        *([] if met else _port(loaded)),
        *_folder(loaded, run),
        *_cache(loaded),
    ]
    found += check_packages(config, loaded.provenance, os.environ, hardware.device)
    found += hub_findings(config, known, os.environ)
    return [replace(d, severity=Severity.WARNING) if d.code in OF_ANOTHER_RUN else d for d in found]


def meeting_place(loaded: Loaded, processes: int, *, met: bool = False) -> list[Diagnostic]:
    """Check that the config's nodes can rendezvous, and that strangers cannot write to the rendezvous store.

    With ``met`` (a launcher has set the rendezvous address) only the store's secret is checked.
    """
    from paceline.launch.addresses import check_address
    from paceline.launch.run_secret import read_secret, unsigned

    source = loaded.provenance.get("launch.master_addr")
    section = loaded.config.launch
    allowed = section.allow_unsigned_store
    open_port = None if met else unsigned(os.environ, section.nnodes, processes, ours=True, allowed=allowed)
    findings = [*filter(None, (open_port,))]
    try:
        read_secret(os.environ)  # raises
        if not met:
            named = source is not None and source.layer != DEFAULTS
            findings += check_address(_cluster(loaded), named=named)
    except ConfigError as error:
        findings += error.diagnostics
    return findings


def _cluster(loaded: Loaded) -> Cluster:
    from paceline.launch.process_spec import Cluster

    c = loaded.config.launch
    return Cluster(c.nproc or 1, c.nnodes, c.node_rank, c.master_addr, c.master_port)


def _port(loaded: Loaded) -> Iterator[Diagnostic]:
    """Check that the configured port is free.

    Inside a launcher the listener may be that launcher: no check.
    """
    from paceline.launch.environment.guide_variables import started_by
    from paceline.launch.ports import resolve_port

    if not loaded.config.launch.master_port or started_by(os.environ) is not None:
        return
    try:
        resolve_port(_cluster(loaded))
    except ConfigError as error:
        yield from error.diagnostics


def _folder(loaded: Loaded, run: RunDir) -> Iterator[Diagnostic]:
    """Check that the run may write to its run directory."""
    from paceline.launch.claim_run_dir import check_claim

    t = loaded.config.training
    try:
        check_claim(run, overwrite=t.overwrite_output_dir, resume=bool(t.resume_from_checkpoint))
    except PacelineError as error:
        yield from error.diagnostics


def _cache(loaded: Loaded) -> Iterator[Diagnostic]:
    """Check that the cache directory for prepared data is writable."""
    from pathlib import Path

    from paceline.core.files import not_writable
    from paceline.launch.environment.guide_variables import cache_folder

    named = loaded.config.data.cache_dir
    folder = Path(named).expanduser() if named else cache_folder(os.environ)
    if wrong := not_writable(folder):
        yield codes.DATA_CACHE_WRITE("data.cache_dir", f"{folder}: {wrong}"[:600])


SECONDS = 60.0


def code_sandbox(config: Config) -> str | None:
    """Return why the sandbox cannot be used: empty if it can, None if this config runs no programs."""
    from paceline.launch.process_spec import import_path, module_argv

    rollout = config.training.rollout
    if rollout is None or not rollout.allow_code_execution or all(r.name != "code" for r in rollout.rewards):
        return None
    try:
        done = subprocess.run(
            module_argv("paceline.algorithms.rewards.code_reward"),
            env=without_secrets({**os.environ, **import_path(os.environ)}),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        return str(json.loads(done.stdout)["refused"])
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"the sandbox could not be tested: {error}"
