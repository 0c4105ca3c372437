"""Rules for the strategy, the process-group backend and the launch."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.keys.suggest import value_meant
from paceline.core import codes as core_codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.plugins.tables import CHOOSERS, STRATEGIES
from paceline.plan.hardware.device_kinds import CPU, kind_of
from paceline.plan.strategies.spec import strategy_specs
from paceline.rules import codes
from paceline.rules.rule import Context, Rule

_STRATEGY = "training.distributed_strategy"


def strategy_name(c: Context) -> Iterator[Diagnostic]:
    """strategy.unknown"""
    name = c.training.distributed_strategy
    names = (*CHOOSERS, *STRATEGIES.names())
    if name in names or ":" in name:
        return
    meant = value_meant(_STRATEGY, name, names)
    yield c.problem(
        core_codes.STRATEGY_UNKNOWN,
        "there is no strategy of this name",
        _STRATEGY,
        hint=(f"did you mean '{meant}'?" if meant in names else meant)
        or f"one of {', '.join(names)}, or module:Class",
    )


def fsdp_and_deepspeed(c: Context) -> Iterator[Diagnostic]:
    """back.fsdp_ds"""
    if c.training.fsdp and c.training.deepspeed:
        yield c.at(codes.BACK_FSDP_DS(found="fsdp and deepspeed"), "training.fsdp", "training.deepspeed")


def strategy_against_file(c: Context) -> Iterator[Diagnostic]:
    """back.strategy_vs_file"""
    name = c.training.distributed_strategy
    spec = c.named_strategy
    chooser = spec or CHOOSERS.get(name)
    if chooser is None:
        return
    sections = chooser.sections
    # A section of another engine than the strategy's
    owners = {key: owner.name for owner in reversed(strategy_specs()) for key in owner.sections}
    for key, owner in sorted(owners.items()):
        value = getattr(c.training, key)
        if value and key not in sections:
            yield c.problem(
                codes.BACK_STRATEGY_VS_FILE,
                f"{key} is set, but the strategy is {name}",
                _STRATEGY,
                f"training.{key}",
                found=f"distributed_strategy: {name}, {key}: {value if isinstance(value, str) else '{…}'}",
                hint=f"set distributed_strategy: {owner}, or remove {key} ({key}: null)",
            )
    # A ZeRO stage other than the one in the strategy's name
    stage = c.zero.get("stage")
    fixed = None if spec is None else spec.zero_stage
    if fixed is not None and stage is not None and str(stage) != str(fixed):
        yield c.problem(
            codes.BACK_STRATEGY_VS_FILE,
            f"the strategy is {name}, but the DeepSpeed config sets stage {stage}",
            _STRATEGY,
            hint=f"set zero{stage}, or distributed_strategy: deepspeed; or leave the file's keys out:"
            " deepspeed: null",
        )


def distributed_flag(c: Context) -> Iterator[Diagnostic]:
    """back.distributed_flag, back.distributed_alone, back.one_process"""
    spec = c.named_strategy
    alone = spec is not None and spec.one_process
    # The flag against the strategy
    if c.training.distributed is False and spec is not None and not alone:
        yield c.problem(
            codes.BACK_DISTRIBUTED_FLAG,
            "distributed: false together with a distributed strategy",
            "training.distributed",
            _STRATEGY,
            hint="set distributed: true, or distributed_strategy: single",
        )
    if c.training.distributed is True and spec is not None and alone and not spec.multi_device:
        yield c.problem(
            codes.BACK_DISTRIBUTED_FLAG,
            "distributed: true together with a single-process strategy",
            "training.distributed",
            _STRATEGY,
            hint="set distributed_strategy: ddp, or distributed: false",
        )
    # The flag and the strategy against the number of processes
    world = c.facts.world_size
    if world == 1 and c.training.distributed is True and not alone:
        device = None if c.training.use_cpu else c.facts.device
        several = "" if device and not kind_of(device).backend else "use --nproc 2 or more, or a launcher; "
        remedy = f"{several}set distributed: false for a single process"
        yield c.at(codes.BACK_DISTRIBUTED_ALONE(hint=remedy), "training.distributed")
    if world is not None and world > 1 and (c.training.distributed is False or alone):
        path = "training.distributed" if c.training.distributed is False else _STRATEGY
        yield c.at(codes.BACK_ONE_PROCESS(world=world), path)


def needs_processes(c: Context) -> Iterator[Diagnostic]:
    """back.fsdp_single"""
    world, spec = (c.facts.world_size, c.strategy)
    least = 1 if spec is None else spec.min_processes
    on_host = c.training.use_cpu
    if spec is not None and world is not None and world < least:
        yield c.at(
            codes.BACK_FSDP_SINGLE(
                name=spec.name,
                least=least,
                there="there is only one" if world == 1 else f"there are {world}",
                start="use"
                if on_host or kind_of(c.facts.device or CPU.name).backend
                else "set use_cpu: true with",
            ),
            "training.fsdp" if c.training.fsdp else _STRATEGY,
        )


def nccl(c: Context) -> Iterator[Diagnostic]:
    """back.nccl_cpu"""
    if c.training.ddp_backend == "nccl" and (c.training.use_cpu or c.facts.device == "cpu"):
        yield c.at(
            codes.BACK_NCCL_CPU(
                why="use_cpu is set" if c.training.use_cpu else "this machine has no CUDA device"
            ),
            "training.ddp_backend",
        )


_BACKEND_FROM = {
    "mpi": "a torch built from source with MPI",
    "ccl": "Intel's bindings (pip install oneccl_bind_pt)",
    "xccl": "a torch for Intel GPUs",
    "hccl": "Ascend's torch_npu, and under the same name Habana's torch",
    "nccl": "a torch for CUDA",
}


def backend_built(c: Context) -> Iterator[Diagnostic]:
    """back.not_built"""
    name, built = c.training.ddp_backend, c.facts.backends
    if (
        built is not None
        and name != "auto"
        and name not in built
        and not (name == "nccl" and c.facts.device == "cpu")
    ):
        yield c.at(
            codes.BACK_NOT_BUILT(
                name=name,
                built=", ".join(sorted(built)),
                get=_BACKEND_FROM.get(name, "another build of torch"),
            ),
            "training.ddp_backend",
        )


def xla(c: Context) -> Iterator[Diagnostic]:
    """xla.not_run: a warning here, so that a plan can be shown; ``at_start`` makes it an error."""
    config = c.training.fsdp_config
    if not c.starting or not isinstance(config, dict) or config.get("xla") is not True:
        return
    have = "no strategy supports XLA devices" if c.facts.torch_xla else "torch_xla is not installed"
    yield c.at(codes.XLA_NOT_RUN(found="xla: true", have=have), "training.fsdp_config")


def launch(c: Context) -> Iterator[Diagnostic]:
    """back.node_rank, back.multi_node_port"""
    section = c.config.launch
    if section.node_rank >= section.nnodes:
        yield c.at(codes.BACK_NODE_RANK(last=section.nnodes - 1), "launch.node_rank", "launch.nnodes")
    if section.nnodes > 1 and section.master_port is None and c.starting:
        yield c.at(codes.BACK_MULTI_NODE_PORT(), "launch.master_port")


def slurm(c: Context) -> Iterator[Diagnostic]:
    """host.slurm_tasks"""
    tasks = c.facts.slurm_ntasks_per_node
    if c.facts.launcher == "torchrun" and c.facts.inside_srun and tasks is not None and tasks > 1:
        yield codes.HOST_SLURM_TASKS("SLURM_NTASKS_PER_NODE", str(tasks))


def outside_srun(c: Context) -> Iterator[Diagnostic]:
    """host.slurm_idle"""
    have, world, run_nodes = c.facts.outside_srun, c.facts.world_size, c.facts.num_nodes
    if have is None or world is None or run_nodes is None:
        return
    nodes, tasks = have
    fewer_tasks = tasks > world and c.config.launch.nproc is None
    if run_nodes >= nodes and not (nodes <= 1 and fewer_tasks):
        return
    # One rank a task, or one command a node, which starts a process for each of the node's devices
    command = "srun paceline train …"
    if tasks <= nodes:
        options = f"… --nnodes {nodes} --master-port {c.config.launch.master_port or 29500}"
        started = "torchrun …" if c.facts.launcher == "torchrun" else f"paceline train {options}"
        command = f"srun --ntasks-per-node=1 {started}"
    instead = "" if nodes > 1 else "; or allocate one task with several CPUs (sbatch -n 1 -c N)"
    allocated = f"nodes: {nodes}" + (f", tasks: {tasks}" if tasks else "")
    found = f"allocated: {allocated}; this run: nodes: {run_nodes}, processes: {world}"
    yield codes.HOST_SLURM_IDLE("SLURM_JOB_NUM_NODES", found, command=command, instead=instead)


BACKEND_RULES: tuple[Rule, ...] = (
    strategy_name,
    fsdp_and_deepspeed,
    strategy_against_file,
    distributed_flag,
    needs_processes,
    nccl,
    backend_built,
    xla,
    launch,
    slurm,
    outside_srun,
)
