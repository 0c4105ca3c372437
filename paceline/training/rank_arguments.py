"""Command line of a worker: a plan from the parent process, or the YAML when another launcher started it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config.load import Loaded, NotLoaded, load_config
from paceline.config.schema import Config
from paceline.config.source import DEFAULTS
from paceline.core.diagnostics import Diagnostic, errors
from paceline.core.errors import ConfigError
from paceline.core.package import cache_folder
from paceline.core.rundir import RunDir
from paceline.launch.environment.guide_variables import translate
from paceline.launch.environment.job_managers import OWN_DEVICES, parse_nonnegative_int, process_rank
from paceline.launch.preflight.child_checks import images_in_rows
from paceline.launch.preflight.once_per_node import once_per_node
from paceline.launch.preflight.plan_job import preflight_findings_of_ranks, with_files
from paceline.launch.process_spec import Cluster
from paceline.launch.processes import MARK
from paceline.plan.algorithms.spec import named_shapes
from paceline.plan.hardware.probe import probe_hardware
from paceline.plan.model.read_config import shape_of
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.rules import at_start
from paceline.rules.planning import make_plan
from paceline.runtime.rank_env import RankEnv
from paceline.training import codes


@dataclass(frozen=True)
class Start:
    """A rank's inputs before it meets the others. ``plan`` is None if rank 0 has yet to make it."""

    config: Config
    plan: Plan | None
    config_file: str | None
    local_rank: int | None
    notes: tuple[Diagnostic, ...] = ()
    loaded: Loaded | None = None


def parse_start(argv: Sequence[str], environ: Mapping[str, str]) -> Start:
    """Parse the command line. Raises ConfigError with all violations of the config."""
    # launchers append flags of their own, which no prefix may match
    parser = argparse.ArgumentParser(prog="python -m paceline.training.rank", allow_abbrev=False)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--plan", help="plan.json written by the parent")
    source.add_argument(
        "--config", help="the YAML, when started by torchrun, deepspeed, mpirun, accelerate or srun"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override of one config key"
    )
    parser.add_argument(
        "--local-rank", "--local_rank", type=int, default=None, help="as given by torch.distributed.launch"
    )
    parser.add_argument(
        "--deepspeed_config", "--deepspeed-config", metavar="JSON", help="overrides training.deepspeed"
    )
    parser.add_argument(
        "--deepspeed", action="store_true", help="accepted for compatibility: the config sets it"
    )
    args = parser.parse_args(list(argv))
    if args.plan is not None:
        return from_plan(Path(args.plan), args.local_rank)
    translation = translate(environ)
    settings = [
        *args.set,
        *([f"training.deepspeed={args.deepspeed_config}"] if args.deepspeed_config else []),
    ]
    wrong = errors(translation.notes)
    try:
        loaded = load_config(args.config, settings, translation.environ(environ))
    except NotLoaded as error:
        raise ConfigError(*wrong, *_looked_in_doubt(error, environ)) from None
    if wrong:
        raise ConfigError(*wrong)
    notes = (*translation.notes, *loaded.notes, *other_processes(loaded, environ), *restarts(loaded, environ))
    return Start(loaded.config, None, args.config, args.local_rank, notes, loaded)


def _looked_in_doubt(error: NotLoaded, environ: Mapping[str, str]) -> Sequence[Diagnostic]:
    """Return the errors of a config and of its files, computed once per node."""
    if MARK in environ:
        return error.diagnostics
    subject = json.dumps(
        [error.partial.config.to_json(), sorted(error.doubt), environ.get("TORCHELASTIC_RESTART_COUNT")]
    )
    return once_per_node(cache_folder(environ) / "looks", subject, lambda: with_files(error).diagnostics)


def looked_at(start: Start, env: RankEnv, environ: Mapping[str, str]) -> Start:
    """Run the checks of ``paceline train``, once per node, and return ``start`` with their notes.

    Skipped if a parent process has run them (it made the plan, or it is Paceline's launcher on several
    nodes). Raises ConfigError with all errors.
    """
    loaded = start.loaded
    if loaded is None or MARK in environ:
        return start

    def look() -> Sequence[Diagnostic]:
        return preflight_findings_of_ranks(
            loaded,
            Cluster(env.local_world_size, env.num_nodes),
            env.launcher,
            first_node=env.rank == env.local_rank,
        )

    if env.local_world_size == 1:
        findings = look()
    else:
        subject = json.dumps(
            [loaded.config.to_json(), env.world_size, env.num_nodes, env.launcher, env.restart]
        )
        findings = once_per_node(cache_folder(environ) / "looks", subject, look)
    if wrong := at_start(findings):
        raise ConfigError(*wrong)
    return replace(start, notes=(*start.notes, *findings))


def same_size(plan: Plan, env: RankEnv) -> None:
    """Raise ConfigError if the launcher started another number of ranks than planned: each would train on the
    wrong rows.
    """
    if (env.world_size, env.num_nodes) == (plan.world_size, plan.num_nodes):
        return
    raise ConfigError(
        codes.TRAINING_PLAN_RANKS(
            "plan.json",
            f"{env.world_size} on {env.num_nodes} node(s) ({env.launcher}); planned: {plan.world_size} on"
            f" {plan.num_nodes}",
        )
    )


def plan_here(start: Start, env: RankEnv, environ: Mapping[str, str]) -> Plan:
    """Make the plan on this rank, without a parent. Only rank 0's plan is used."""
    config = start.config
    shape = shape_of(config.model, environ, exactly=True)
    job = Job(
        config,
        probe_hardware(
            environ,
            use_cpu=config.training.use_cpu,
            num_nodes=env.num_nodes,
            tasks=env.local_world_size if env.launcher in OWN_DEVICES else 1,
        ),
        world_size=env.world_size,
        num_nodes=env.num_nodes,
        launcher=env.launcher,
        run_dir=str(RunDir.at(config.run_directory()).root),
        shape=shape,
        others=named_shapes(config, environ, exactly=True),
        images=images_in_rows(config, shape),
    )
    return make_plan(job)


def other_processes(loaded: Loaded, environ: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    """Return warnings if ``launch:`` asks for other numbers of processes or nodes than were started.

    The started numbers are used.
    """
    here, launch = process_rank(environ), loaded.config.launch
    started = {"launch.nproc": here.local_size, "launch.nnodes": max(1, here.size // max(1, here.local_size))}
    findings = []
    for path, count in started.items():
        requested, source = getattr(launch, path.partition(".")[2]), loaded.provenance.get(path)
        if source is not None and source.layer != DEFAULTS and requested not in (None, count):
            findings.append(
                codes.LAUNCH_OTHER_PROCESSES(
                    source.place(), str(requested), path=path, requested=requested, count=count
                )
            )
    return tuple(findings)


def restarts(loaded: Loaded, environ: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    """Return a warning if ``torchrun --max-restarts N`` would restart without resuming.

    It repeats the same command, and only ``auto`` and ``latest`` resume from the run's own checkpoint.
    """
    requested, resume = (
        environ.get("TORCHELASTIC_MAX_RESTARTS", "0"),
        loaded.config.training.resume_from_checkpoint,
    )
    if parse_nonnegative_int(requested) == 0 or resume in ("auto", "latest"):
        return ()
    key = "training.resume_from_checkpoint"
    return (
        codes.LAUNCH_RESTARTS(
            "torchrun --max-restarts", f"{key}: {resume or 'null'}", requested=requested, key=key
        ),
    )


def from_plan(path: Path, local_rank: int | None) -> Start:
    """Return the start that a parent process prepared. Raises ConfigError if the plan cannot be read."""
    try:
        plan = Plan.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(codes.TRAINING_PLAN_FILE(str(path), f"{type(exc).__name__}: {exc}")) from exc
    return Start(plan.config, plan, None, local_rank)
