"""From a Config to a Plan, with every check before the launch: processes, hardware, run directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config import codes as config_codes
from paceline.config.layers.build import certain_findings, is_reliable
from paceline.config.schema import field_of
from paceline.config.source import COMMAND_LINE, DEFAULTS
from paceline.core.diagnostics import Diagnostic, Severity, errors
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.launch.claim_run_dir import WAIT_SECONDS, check_run_dir
from paceline.launch.environment.deepspeed_build_locks import op_lock_problems
from paceline.launch.environment.job_managers import OWN_DEVICES
from paceline.launch.launchers import launcher_for
from paceline.launch.preflight.child_checks import (
    check_in_doubt,
    from_object_storage,
    images_in_rows,
    run_preflight,
)
from paceline.launch.preflight.facts import facts
from paceline.launch.preflight.machine import OF_ANOTHER_RUN, code_sandbox, of_machine
from paceline.launch.process_spec import Cluster
from paceline.plan import codes as plan_codes
from paceline.plan.algorithms.spec import named_shapes
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.hardware.probe import probe
from paceline.plan.model.files.folder_check import wrong_folders
from paceline.plan.model.model_catalogue import known_shape
from paceline.plan.model.read_config import shape_of
from paceline.plan.plan import Decision
from paceline.plan.strategies.spec import Job, declared_spec
from paceline.rules import of_config
from paceline.rules.planning import try_plan

if TYPE_CHECKING:
    from paceline.config.load import Loaded, NotLoaded
    from paceline.config.schema import Config
    from paceline.config.source import Source
    from paceline.plan.hardware.device_catalogue import AcceleratorCluster as PlannedCluster
    from paceline.plan.hardware.probe import Hardware
    from paceline.plan.model.shape import ModelShape
    from paceline.plan.plan import Plan

#: Findings that say what a folder is, and those that only say what it lacks to be another.
_IS = (plan_codes.MODEL_RUN_FOLDER.name, plan_codes.MODEL_ADAPTER_FOLDER.name)
_LACKS = (
    plan_codes.PLAN_MODEL_CONFIG.name,
    plan_codes.PLAN_MODEL_TYPE.name,
    plan_codes.PLAN_ADAPTER_FOLDER.name,
    "data.no_tokenizer",
    "models.cannot_load",
)


@contextmanager
def located(loaded: Loaded) -> Iterator[None]:
    """Inside, replace config keys in raised errors by ``file:line``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(*merged((), error.diagnostics, loaded.provenance)) from error


def planned(
    loaded: Loaded,
    *,
    launcher: str | None = None,
    cluster: PlannedCluster | None = None,
    needs_room: bool = True,
    imports: bool = True,
    ranks: Ranks | None = None,
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """Return the plan for this machine (or for ``cluster``), and warnings.

    ``needs_room``: as in ``make_plan``. ``imports``: try imports in a child process. ``ranks``: processes
    that another launcher has already started.

    Raises ConfigError with every violation at once: from hardware and world size, from the config's rules,
    from files and from trial imports.
    """
    with located(loaded):
        draft = _draft(loaded, launcher, cluster, needs_room, imports, ranks)
        # Checks of files, imports and this machine; all errors are raised together
        config, plan, elsewhere = loaded.config, draft.plan, cluster is not None
        trials = run_preflight(config, plan, imports=imports, elsewhere=elsewhere)
        here: list[Diagnostic] = []
        if not elsewhere:
            run, met = RunDir.at(config.run_directory()), ranks is not None
            here = of_machine(
                loaded, draft.hardware, draft.processes.world_size, draft.knows_shape, run, met=met
            )
        seen = (*draft.of_devices, *here, *trials.found)
        wrong = merged(errors(draft.ruled), (*draft.problems, *errors(seen)), loaded.provenance)
        if wrong or plan is None:
            raise ConfigError(*wrong)
    warnings = merged((), [d for d in seen if d.severity is not Severity.ERROR], loaded.provenance)
    return trials.with_decision(plan), (*draft.ruled, *warnings)


@dataclass(frozen=True)
class _Draft:
    """A plan (or None) before its checks; ``ruled``: findings of the rules, ``problems``: of the plan.

    ``knows_shape``: the model's shape is known; ``of_devices``: findings about the hardware.
    """

    plan: Plan | None
    ruled: Sequence[Diagnostic]
    problems: Sequence[Diagnostic]
    hardware: Hardware
    processes: Cluster
    of_devices: Sequence[Diagnostic]
    knows_shape: bool


def _draft(
    loaded: Loaded,
    launcher: str | None,
    cluster: PlannedCluster | None,
    needs_room: bool,
    imports: bool,
    ranks: Ranks | None,
) -> _Draft:
    """Make a plan from the facts before a start. Raises ConfigError for a folder that is not a model."""
    config = loaded.config
    if unusable := wrong_folders(config):  # nothing else that can be said of them would help
        ruled = errors(_of_rules(loaded, frozenset(), config))
        raise ConfigError(*merged(ruled, unusable, loaded.provenance))
    hardware, of_devices, processes = _machine(loaded, cluster, ranks)
    launcher = ranks.launcher if ranks else launcher_for(processes, launcher)
    run = RunDir.at(config.run_directory())
    shape, problems = _shape(config, imports)
    from_list = shape is None and not problems
    shape = shape or (known_shape(config.model.name_or_path or "") if from_list else None)
    facts_here = facts(hardware, processes, launcher, shape, os.environ, config)
    facts_here = (
        replace(facts_here, code_sandbox=code_sandbox(config))
        if cluster is None
        else replace(facts_here, **OF_THIS_MACHINE)
    )
    others, missing = _others(config, imports)
    world, nodes = processes.world_size, processes.num_nodes
    images = images_in_rows(config, shape, imports=imports)
    job = Job(config, hardware, world, nodes, launcher, str(run.root), shape, others, needs_room, images)
    tried = try_plan(job, provenance=loaded.provenance, facts=facts_here)
    plan = tried.plan
    problems += [*missing, *tried.problems, *_unread(loaded)]
    if cluster is None and plan is not None and "nvme" in plan.engine.places:
        problems += op_lock_problems(os.environ)
    if plan is not None and from_list and shape is not None:
        says = "the model is not on this machine: layers and sizes are those listed under its name"
        listed = Decision("model.name_or_path", "shape of the shipped list", says)
        plan = replace(plan, decisions=(*plan.decisions, listed))
    return _Draft(plan, tried.ruled, problems, hardware, processes, of_devices, shape is not None)


def _unread(loaded: Loaded) -> list[Diagnostic]:
    """Return the notes about missing files, as errors."""
    name = config_codes.CONFIG_FOREIGN_MISSING.name
    return [replace(d, severity=Severity.ERROR) for d in loaded.notes if d.code == name]


def _machine(
    loaded: Loaded, cluster: PlannedCluster | None, ranks: Ranks | None
) -> tuple[Hardware, Sequence[Diagnostic], Cluster]:
    """Return the hardware (of this machine, or ``cluster``'s), findings about it, and the processes."""
    config = loaded.config
    if cluster is not None:
        return cluster.hardware(), (), Cluster(processes_of(loaded, cluster), cluster.nodes)
    nodes = ranks.cluster.num_nodes if ranks else config.launch.nnodes
    tasks = ranks.cluster.nproc if ranks and ranks.launcher in OWN_DEVICES else 1
    probed = probe(os.environ, use_cpu=config.training.use_cpu, num_nodes=nodes, tasks=tasks)
    processes = ranks.cluster if ranks else Cluster(num_processes(config, probed.hardware), nodes)
    return probed.hardware, probed.findings, processes


def with_plan(error: NotLoaded) -> ConfigError:
    """Combine a config's loading errors with the findings of ``planned``, if every unknown key has a single
    possible meaning. Else combine the errors of ``with_files`` with the plan's findings about the valid part.
    """
    if error.doubt:
        return with_files(error, _without_files)
    try:
        planned(error.partial)
    except ConfigError as further:
        return ConfigError(*merged(error.diagnostics, further.diagnostics, error.partial.provenance))
    return error


def _of_rules(loaded: Loaded, doubt: frozenset[str], config: Config) -> Sequence[Diagnostic]:
    """Return the errors of the rules that hold on any machine."""
    return of_config(config, provenance=loaded.provenance)


def with_files(
    error: NotLoaded,
    judge: Callable[[Loaded, frozenset[str], Config], Sequence[Diagnostic]] = _of_rules,
) -> ConfigError:
    """Combine a config's loading errors with those of ``judge`` and of the named files for its valid part."""
    sound = error.partial
    surely = certain_findings(partial(judge, sound, error.doubt), sound.config, error.doubt)
    in_doubt = check_in_doubt(sound.config, error.doubt)
    return ConfigError(*merged([*error.diagnostics, *surely], in_doubt, sound.provenance))


#: Without these no plan says anything that is surely true once the config is mended.
_SHAPING = (
    *("launch.nproc", "launch.nnodes", "model", "lora.quantization_bit", "data.train", "data.eval"),
    *("training.deepspeed", "training.parallelism", "training.fsdp", "training.fsdp_config"),
    *("training.distributed_strategy", "training.rollout"),
)
#: Where a ZeRO stage moves its states shapes nothing but memory.
_OFFLOAD = "training.deepspeed.zero_optimization.offload_"


def _without_files(loaded: Loaded, doubt: frozenset[str], config: Config) -> Sequence[Diagnostic]:
    """Return the errors of the rules and the plan on this machine. Return only the rules' errors if a doubted
    key may be any key of a section, or decides the plan.
    """
    ruled = _of_rules(loaded, doubt, config)
    others_in_doubt = frozenset(key for key in doubt if not key.startswith(_OFFLOAD))
    if not all(map(field_of, others_in_doubt)) or not is_reliable(others_in_doubt, *_SHAPING):
        return ruled
    meant = replace(loaded, config=config)
    hardware, _, processes = _machine(meant, None, None)
    shape, others = _shape(config, False)[0], _others(config, False)[0]
    world, nodes, launcher = processes.world_size, processes.num_nodes, launcher_for(processes, None)
    job = Job(config, hardware, world, nodes, launcher, config.run_directory(), shape, others, False)
    tried = try_plan(job, provenance=loaded.provenance)
    # What stands at a doubted key is about the value that took its place, or is said already.
    sound = [d for d in (*errors(tried.ruled), *tried.problems) if is_reliable(doubt, d.where)]
    return merged(ruled, sound, loaded.provenance)


@dataclass(frozen=True)
class Ranks:
    """Processes started by another launcher; ``launcher``: its name as in ``RankEnv``."""

    cluster: Cluster
    launcher: str


def preflight_findings_of_ranks(
    loaded: Loaded, cluster: Cluster, launcher: str, *, first_node: bool
) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of ``planned``, errors included, for ranks that another launcher has started.

    On the first node also those of the run directory.
    """
    try:
        with located(loaded):
            notes = from_object_storage(loaded.config, leads=first_node, several=cluster.num_nodes > 1)
        _, warnings = planned(loaded, ranks=Ranks(cluster, launcher))
        if first_node:
            check_run_dir(RunDir.at(loaded.config.run_directory()), loaded.config.training, WAIT_SECONDS)
    except ConfigError as error:
        return error.diagnostics
    return tuple(d for d in (*notes, *warnings) if d.code not in OF_ANOTHER_RUN)


# This machine's disk and network say nothing about another's.
OF_THIS_MACHINE: dict[str, Any] = dict.fromkeys(
    ("disk_free_bytes", "interfaces", "max_open_files", "nccl_socket_ifname")
    + ("infiniband", "memlock_unlimited", "outside_srun")
)


def _shape(config: Config, exactly: bool) -> tuple[ModelShape | None, list[Diagnostic]]:
    """Return the model's shape (None if not known), and the errors that forbid training it.

    ``exactly``: its class may be asked, in a child process.
    """
    try:
        return shape_of(config.model, os.environ, exactly=exactly), []
    except ConfigError as error:
        return None, list(error.diagnostics)


def _others(config: Config, exactly: bool) -> tuple[dict[str, ModelShape | None], list[Diagnostic]]:
    """Return the shapes of the config's other models, and the errors of their folders."""
    try:
        return named_shapes(config, os.environ, exactly=exactly), []
    except ConfigError as error:
        return {}, list(error.diagnostics)


def merged(
    rules: Sequence[Diagnostic], plan: Sequence[Diagnostic], provenance: Mapping[str, Source]
) -> list[Diagnostic]:
    """Merge the findings of rules and plan without duplicates.

    The plan's get ``file:line`` where a key was set.

    A plan finding is dropped if a rule reported the same code at the same key. A finding without a line is
    dropped if another reports the same value with its line.
    """
    by_rules = {(d.code, key) for d in rules for key in d.where.split(" and ")}
    findings = list(rules)
    for diagnostic in plan:
        source = provenance.get(diagnostic.where)
        place = source.place() if source and source.layer != DEFAULTS else diagnostic.where
        # The planner and the file checks read the same files
        listed = {(d.code, d.where, d.what) for d in findings}
        is_reported = (diagnostic.code, place) in by_rules or (
            diagnostic.code,
            place,
            diagnostic.what,
        ) in listed
        if not is_reported:
            findings.append(replace(diagnostic, where=place))
    at_lines = {(d.code, d.what, d.found) for d in findings if d.found and _has_line(d)}
    twice = [d for d in findings if (d.code, d.what, d.found) in at_lines and not _has_line(d)]
    return [d for d in findings if d not in twice and not _follows(d, findings)]


def _has_line(finding: Diagnostic) -> bool:
    return finding.where.rpartition(":")[2].isdigit()


def _follows(finding: Diagnostic, findings: Sequence[Diagnostic]) -> bool:
    """Whether a finding only reports a missing part of a folder, and another finding identifies the
    folder."""
    where, shown = finding.where, finding.found
    return finding.code in _LACKS and any(
        d.code in _IS
        and (where == d.where or Path(where).parent == Path(d.found) or shown.startswith(d.found))
        for d in findings
    )


def processes_of(loaded: Loaded, cluster: PlannedCluster) -> int:
    """Return the processes per node of the named hardware.

    ``--nproc`` if given, else 1 for a single-process strategy, else one per device. Raises ConfigError if the
    command line gives a number of nodes that differs from the hardware's.
    """
    config = loaded.config
    requested = {key for key, source in loaded.provenance.items() if source.layer == COMMAND_LINE}
    if "launch.nnodes" in requested and config.launch.nnodes != cluster.nodes:
        conflict = f"the hardware is {cluster.nodes} node(s) of {cluster.machine.node}"
        remedy = "use --hardware alone, with the number of devices of all nodes"
        raise ConfigError(
            plan_codes.PLAN_HARDWARE_NODES(conflict, "--nnodes", str(config.launch.nnodes), remedy)
        )
    if "launch.nproc" in requested and config.launch.nproc is not None:
        return config.launch.nproc
    return 1 if is_single_process(config) else cluster.machine.node


def num_processes(config: Config, hardware: Hardware) -> int:
    """Return the processes of this node: the configured number, else one per GPU, or one on a CPU."""
    if config.launch.nproc is not None:
        return config.launch.nproc
    return hardware.num_devices if is_accelerator(hardware.device) and not is_single_process(config) else 1


def is_single_process(config: Config) -> bool:
    """Whether the config uses one process; under ``data_parallel`` it drives all devices of its node."""
    spec = declared_spec(config.training.distributed_strategy)
    return (spec is not None and spec.one_process) or config.training.distributed is False


def cluster_of(config: Config, plan: Plan) -> Cluster:
    """Return the plan's processes with the config's addresses."""
    nproc, nodes = plan.world_size // plan.num_nodes, plan.num_nodes
    return replace(Cluster.of(config.launch), nproc=nproc, num_nodes=nodes, on_cpu=plan.device == "cpu")
