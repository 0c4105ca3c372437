"""From a config to a job: checked as ``paceline train`` checks it, as far as a login node can know."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.sections.launch import seconds_of
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import Json
from paceline.core.rundir import RunDir
from paceline.core.security.secrets import secrets_in, shape_of_secret
from paceline.launch.claim_run_dir import check_run_dir, holds_work
from paceline.launch.launch_record import job_folder
from paceline.launch.network import DEFAULT_PORT
from paceline.launch.preflight.forecast import forecast_of_plan
from paceline.launch.preflight.plan_job import Ranks, planned
from paceline.launch.process_spec import Cluster
from paceline.plan.hardware.device_catalogue import AcceleratorCluster, card_named
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.hardware.probe import probe_hardware
from paceline.schedulers import codes
from paceline.schedulers.job import SHARES_DISK, ArrayTask, ClusterJob, ServedModel

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.schema import Config
    from paceline.config.sections.launch import LaunchSection
    from paceline.plan.cost.report import Forecast

#: of a prediction: the data may be longer, the network slower, and every start takes its minutes
_MARGIN, _START_SECONDS, _STEP_SECONDS = 1.3, 900, 900
_RESUMES = (None, "", "auto", "latest")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NAME_LENGTH = 40


@dataclass(frozen=True)
class JobRequest:
    """What the command line says. ``config`` and ``out`` are absolute; ``program`` is argv of ``paceline``,
    ``import_path`` the variables by which it is found on the nodes.
    """

    config: Path
    overrides: tuple[str, ...]
    scheduler: str
    program: tuple[str, ...]
    folder: Path
    import_path: Mapping[str, str] = field(default_factory=dict)
    out: Path | None = None
    tasks: tuple[ArrayTask, ...] = ()


def checked_job(
    loaded: Loaded, request: JobRequest, environ: Mapping[str, str]
) -> tuple[ClusterJob, list[Diagnostic]]:
    """Return the job, and findings that do not stop it. Raises ConfigError with all that do."""
    config, section = loaded.config, loaded.config.launch
    problems = [
        *_variables(section.env, section.secrets),
        *_range_of_nodes(section, request.scheduler),
        *_start_problems(loaded, here=request.scheduler in SHARES_DISK),
    ]
    gpus = gpus_per_node(config, environ)
    if gpus is None:
        raise ConfigError(*problems, codes.SCHEDULERS_GPUS("launch.gpus_per_node", "not given"))
    nproc = section.nproc or gpus or 1
    notes: list[Diagnostic] = []
    forecast: Forecast | None = None
    try:
        # The job's own command gives its ranks a port, so the plan need not look for a free one here
        port = section.model_copy(update={"master_port": section.master_port or DEFAULT_PORT})
        with_port = replace(loaded, config=config.model_copy(update={"launch": port}))
        notes, forecast = _planned(with_port, gpus, nproc, environ)
    except ConfigError as error:
        problems += error.diagnostics
    if problems:
        raise ConfigError(*problems)
    if request.scheduler not in SHARES_DISK:
        notes += _local_paths(config, request.folder)
    return job_of(config, request, gpus, _time_limit(forecast)), notes


def job_of(config: Config, request: JobRequest, gpus: int, predicted: int | None) -> ClusterJob:
    """Return the job of a config; ``gpus``: accelerators of a node, ``predicted``: seconds that it takes."""
    section = config.launch
    # The nodes have this machine's disk, and run its interpreter
    ours = not section.image and request.scheduler in SHARES_DISK
    found = request.import_path if ours else {}
    run = str(RunDir.at(config.run_directory()).root)
    return ClusterJob(
        name=_name(config, request.config.stem, run),
        program=request.program if ours else ("paceline",),
        config=request.config,
        overrides=request.overrides,
        run=run,
        out=request.out or job_folder(Path(run)).root,
        folder=request.folder,
        nodes=section.nnodes,
        gpus_per_node=gpus,
        nproc=section.nproc or gpus or 1,
        port=section.master_port or DEFAULT_PORT,
        site=section,
        time_limit=seconds_of(section.time_limit) if section.time_limit else predicted,
        env={**found, **{key: str(value) for key, value in (section.env or {}).items()}},
        secrets={key: str(value) for key, value in (section.secrets or {}).items()},
        tasks=request.tasks,
        checkpoint_url=config.training.checkpoint_url,
        upload_timeout=config.training.upload_timeout,
        served=_served(config),
    )


def _served(config: Config) -> ServedModel | None:
    model = config.model
    if config.training.rollout is None or not model.name_or_path or model.config is not None:
        return None
    return ServedModel(str(model.name_or_path), config.data.max_length, model.tokenizer, model.revision)


def gpus_per_node(config: Config, environ: Mapping[str, str]) -> int | None:
    """Return the accelerators of a node: as given, 0 for a run on CPUs, or as many as this machine has."""
    if config.launch.gpus_per_node is not None or config.training.use_cpu:
        return config.launch.gpus_per_node or 0
    here = probe_hardware(environ)
    return here.num_devices if is_accelerator(here.device) else None


def _planned(
    loaded: Loaded, gpus: int, nproc: int, environ: Mapping[str, str]
) -> tuple[list[Diagnostic], Forecast | None]:
    """Plan the job for its nodes. Raises ConfigError."""
    section = loaded.config.launch
    if cluster := planned_cluster(section, gpus):
        plan, warnings = planned(loaded, cluster=cluster)
        return list(warnings), forecast_of_plan(plan, cluster)
    here = probe_hardware(environ)
    if gpus and not is_accelerator(here.device):
        return [codes.SCHEDULERS_UNPLANNED("launch.gpu", "not given")], None
    plan, warnings = planned(loaded, ranks=Ranks(Cluster(nproc, section.nnodes), "slurm"))
    return list(warnings), forecast_of_plan(plan, None)


def planned_cluster(section: LaunchSection, gpus: int) -> AcceleratorCluster | None:
    """Return the job's accelerators as ``launch.gpu`` names them; None where it names none, or on CPUs."""
    if not gpus or not section.gpu:
        return None
    card = card_named(section.gpu, "launch.gpu")
    count, source = gpus * section.nnodes, "launch.gpu"
    return AcceleratorCluster(card.machine(gpus), count, source, card.bf16, card.capability, card.unverified)


def _start_problems(loaded: Loaded, *, here: bool) -> list[Diagnostic]:
    """Return what keeps a job from its first start, or a restart from its own checkpoints.

    ``here``: the run's directory is on this machine's disk.
    """
    training = loaded.config.training
    findings: list[Diagnostic] = []
    resume = training.resume_from_checkpoint
    if resume not in _RESUMES:
        findings.append(codes.SCHEDULERS_RESUME("training.resume_from_checkpoint", str(resume)))
    if not here:
        return findings
    run = RunDir.at(loaded.config.run_directory())
    if training.overwrite_output_dir and run.root.is_dir() and holds_work(run):
        findings.append(
            codes.SCHEDULERS_OVERWRITE("training.overwrite_output_dir", str(run.root), run=run.root)
        )
        return findings
    try:
        check_run_dir(run, training)
    except PacelineError as error:
        findings += error.diagnostics
    return findings


def _local_paths(config: Config, folder: Path) -> list[Diagnostic]:
    """Return warnings about files that are on this machine, and in no mount of the job."""
    data, model = config.data, config.model
    named = [("model.name_or_path", model.name_or_path), ("model.tokenizer", model.tokenizer)]
    for key, sets in (("data.train", data.train), ("data.eval", data.eval)):
        named += [(key, path) for path in (one.path for one in sets or ())]
    named.append(("data.media_dir", data.media_dir))
    targets = [mount.split(":")[1] for mount in config.launch.mounts if ":" in mount]
    findings = []
    for key, name in named:
        path = folder / Path(name or "/nowhere").expanduser()
        if path.exists() and not any(path.is_relative_to(target) for target in targets):
            findings.append(codes.SCHEDULERS_LOCAL_PATH(key, str(name), folder=path.parent))
    return findings


def _range_of_nodes(section: LaunchSection, scheduler: str) -> list[Diagnostic]:
    """Return why a job cannot have the numbers of nodes of ``launch.nodes``."""
    least, most = section.range_of_nodes
    if least == most:
        return []
    found, reason = str(section.nodes), "it starts and ends the nodes of a job together"
    hint = f"--nodes {most} in its place: after a failure the job starts again on {most} nodes"
    return [codes.SCHEDULERS_VALUE("launch.nodes", found, scheduler=scheduler, reason=reason, hint=hint)]


def _variables(env: Mapping[str, Json] | None, secrets: Mapping[str, Json] | None) -> list[Diagnostic]:
    """Return what is wrong with names of variables, and values that must not stand in a file."""
    findings = []
    for section, variables in (("launch.env", env or {}), ("launch.secrets", secrets or {})):
        for name in variables:
            if not _VARIABLE.fullmatch(name):
                findings.append(codes.SCHEDULERS_VARIABLE(section, name, name=name))
    for name, value in (env or {}).items():
        if secrets_in({name: str(value)}) or shape_of_secret(str(value)):
            findings.append(codes.SCHEDULERS_SECRET("launch.env", name, name=name))
    return findings


def _time_limit(forecast: Forecast | None) -> int | None:
    """Return seconds to ask for, from the plan's prediction; None where it predicts none."""
    from paceline.plan.cost.report import outlook

    if forecast is None or forecast.own is None:
        return None
    seconds = outlook(forecast.own, forecast.spec).seconds
    if not seconds:
        return None
    return -(-int(seconds * _MARGIN + _START_SECONDS) // _STEP_SECONDS) * _STEP_SECONDS


def _name(config: Config, stem: str, run: str) -> str:
    """Return the job's name; with an ``output_dir``, by which one file has several runs, a name of the run's
    own: an object of Kubernetes by the same name would be changed, not added.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", str(config.training.experiment_name or stem).lower()).strip("-")
    name = plain[:_NAME_LENGTH].strip("-") or "run"  # a label of Kubernetes, and a job's name of Slurm
    if not config.training.output_dir:
        return name
    digest = hashlib.blake2b(run.encode("utf-8", "surrogateescape"), digest_size=3).hexdigest()
    return f"{name[: _NAME_LENGTH - 7].strip('-')}-{digest}"
