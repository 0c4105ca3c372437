"""Process managers and the environment variables that they set: the one table of rank, size and local rank.

Sources: Open MPI's and Slurm's manuals, Intel MPI's developer reference (Hydra's MPI_LOCALRANKID), MVAPICH2's
user guide, flux-core's flux-environment(7), IBM's jsrun(1), HPE's PALS; Hydra, Open MPI and Slurm were run as
shipped with Debian 12.

``PET_…``: defaults of torchrun's flags, which Kubeflow sets in each pod: it is one node of the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.launch import codes

# sbatch's own shell and salloc's interactive step have step numbers near 2**32: their tasks have no peers
_STEPS_OF_SHELLS = 0xFFFFFFF0


@dataclass(frozen=True)
class JobManager:
    """The variables of one process manager; in each tuple the first that is set counts.

    - ``word``: the command's name
    - ``nodes``, ``hosts``: number and names of the nodes, where it sets them
    - ``job``: equal on all ranks of a job and different between jobs
    - ``needs``: must all be set
    - ``export``: how to pass a variable to all ranks
    """

    name: str
    word: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    export: str = "export MASTER_ADDR=<first host> first"

    def started(self, environ: Mapping[str, str]) -> bool:
        """Whether this manager started the current process."""
        if self.word == "srun" and not _in_a_step(environ):
            return False
        return all(environ.get(name) for name in self.needs) and bool(first_set(environ, self.rank))


def _in_a_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process: not a batch script or a shell, which also have Slurm's variables."""
    return parse_nonnegative_int(environ.get("SLURM_STEP_ID", ""), _STEPS_OF_SHELLS) < _STEPS_OF_SHELLS


_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PJM_JOBID")
#: the first match counts: managers that set the local rank before those that do not, inner ones before Slurm
MANAGERS = (
    JobManager(
        "Open MPI",
        "mpirun",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", *_JOBS),
        export="mpirun -x MASTER_ADDR=<first host> -x MASTER_PORT=29500 …",
    ),
    JobManager(
        "jsrun",
        "jsrun",
        ("JSM_NAMESPACE_RANK",),
        ("JSM_NAMESPACE_SIZE",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_LOCAL_SIZE",),
        job=_JOBS,
    ),
    JobManager(
        "MVAPICH2",
        "mpirun",
        ("MV2_COMM_WORLD_RANK",),
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
        job=_JOBS,
    ),
    JobManager(
        "MVAPICH",
        "mpirun",
        ("MVP_COMM_WORLD_RANK",),
        ("MVP_COMM_WORLD_SIZE",),
        ("MVP_COMM_WORLD_LOCAL_RANK",),
        ("MVP_COMM_WORLD_LOCAL_SIZE",),
        job=_JOBS,
    ),
    JobManager(
        "Hydra (MPICH, Intel MPI)",
        "mpirun",
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
        job=_JOBS,
        needs=("MPI_LOCALNRANKS",),
        export="mpiexec -genv MASTER_ADDR <first host> -genv MASTER_PORT 29500 …",
    ),
    JobManager(
        "PALS",
        "mpirun",
        ("PALS_RANKID",),
        ("PALS_SIZE", "PMI_SIZE"),
        ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        job=("PALS_APID", *_JOBS),
    ),
    JobManager(
        "Cray PMI",
        "mpirun",
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("PMI_LOCAL_RANK",),
        ("PMI_LOCAL_SIZE",),
        job=_JOBS,
        needs=("PMI_LOCAL_SIZE",),
    ),
    JobManager(
        "Platform MPI",
        "mpirun",
        ("MPI_RANKID",),
        ("MPI_NRANKS",),
        ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
        job=_JOBS,
    ),
    JobManager(
        "Flux",
        "flux",
        ("FLUX_TASK_RANK",),
        ("FLUX_JOB_SIZE",),
        ("FLUX_TASK_LOCAL_ID",),
        (),
        ("FLUX_JOB_NNODES",),
        job=("FLUX_JOB_ID",),
    ),
    JobManager(
        "Slurm",
        "srun",
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
        ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
        ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
        ("SLURM_JOB_ID",),
        ("SLURM_STEP_ID",),
        "export MASTER_ADDR=<first host> before srun",
    ),
    JobManager("a process manager with PMI", "mpirun", ("PMI_RANK", "PMI_ID"), ("PMI_SIZE",), job=_JOBS),
)
#: variables that hold a rank: set without a size, the process is one of an unknown number
RANK_ALONE = (
    *dict.fromkeys(name for manager in MANAGERS if manager.word != "srun" for name in manager.rank),
    "ALPS_APP_PE",
    "PMIX_RANK",
    "PMI_FORK_RANK",
    "OMPI_MCA_orte_ess_vpid",
)


def first_set(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the value of the first of these variables that is set; empty if none is."""
    return next((environ[name] for name in names if environ.get(name)), "")


def manager_of(environ: Mapping[str, str]) -> JobManager | None:
    """Return the MPI or cluster manager that started this process as one of several; None if there is none.

    Raises ConfigError (``launch.rank_alone``) if the process has a rank but no world size.
    """
    manager = next((m for m in MANAGERS if m.started(environ) and first_set(environ, m.size)), None)
    if manager is None and (name := next((name for name in RANK_ALONE if environ.get(name)), "")):
        rank_alone = f"{name}={environ[name]}, but no number of processes"
        raise ConfigError(codes.LAUNCH_RANK_ALONE("environment", rank_alone))
    return manager


def started_by(environ: Mapping[str, str]) -> str | None:
    """Return the launcher that started this process as one rank of several; None if there is none."""
    if "TORCHELASTIC_RUN_ID" in environ:
        return "accelerate" if "ACCELERATE_MIXED_PRECISION" in environ else "torchrun"
    if environ.get("RANK") and environ.get("WORLD_SIZE"):
        return "deepspeed" if "CROSS_SIZE" in environ and "LOCAL_SIZE" in environ else "env"
    has_rank = any(environ.get(name) for name in RANK_ALONE)
    return next((m.word for m in MANAGERS if m.started(environ)), "mpirun" if has_rank else None)


def outside_srun(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the nodes and tasks of the Slurm allocation around this process (0: not set).

    None where there is no allocation, or srun started this process: then srun's own numbers hold.
    """
    if not environ.get("SLURM_JOB_ID") or _in_a_step(environ):
        return None
    nodes = first_set(environ, ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"))
    return parse_nonnegative_int(nodes), parse_nonnegative_int(environ.get("SLURM_NTASKS", ""))


@dataclass(frozen=True)
class ProcessRank:
    """A process's ``rank`` of ``size``, with ``local_size`` ranks on its node.

    ``host``: node 0 (empty: not known).
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1
    host: str = ""


def process_rank(environ: Mapping[str, str]) -> ProcessRank:
    """Read rank and sizes from the launcher's variables; one process without a launcher.

    A size that is not a number counts as several (``RankEnv`` refuses it). Raises ConfigError as
    ``manager_of`` does.
    """
    if environ.get("RANK") and environ.get("WORLD_SIZE"):
        local = first_set(environ, ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"))
        size = parse_nonnegative_int(environ["WORLD_SIZE"]) or 2
        return ProcessRank(
            parse_nonnegative_int(environ["RANK"]),
            size,
            max(1, parse_nonnegative_int(local, 1)),
            environ.get("MASTER_ADDR", ""),
        )
    manager = manager_of(environ)
    if manager is None:
        return ProcessRank()
    size = parse_nonnegative_int(first_set(environ, manager.size) or "1") or 2
    nodes = parse_nonnegative_int(first_set(environ, manager.nodes), 1)
    on_node = next(iter(local_sizes(first_set(environ, manager.local_size))), size // max(1, nodes))
    host = environ.get("MASTER_ADDR") or first_host(first_set(environ, manager.hosts))
    return ProcessRank(parse_nonnegative_int(first_set(environ, manager.rank)), size, max(1, on_node), host)


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: ``gpu[003-005,7],login`` → ``gpu003``."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", nodelist.strip())
    return "" if match is None else match.group(1) + (match.group(2) or "")


def local_sizes(text: str) -> tuple[int, ...]:
    """Parse Slurm's processes per node: ``2(x3),1`` → (2, 2, 2, 1); a single number holds for every node.

    Anything else gives an empty tuple.
    """
    if not re.fullmatch(r"\d{1,6}(\(x\d{1,6}\))?(,\d{1,6}(\(x\d{1,6}\))?)*", text.strip(), re.ASCII):
        return ()
    return tuple(
        int(number)
        for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
        for _ in range(int(times or 1))
    )


#: ``RankEnv.launcher`` of those that may show each process devices of its own (srun --gpus-per-task=1).
OWN_DEVICES = ("slurm", "mpirun")


def parse_nonnegative_int(text: str, default: int = 0) -> int:
    """Parse a non-negative integer of at most 12 digits; return ``default`` for anything else."""
    return int(text) if re.fullmatch(r"\s*[0-9]{1,12}\s*", text) else default


_NODES, _PROCESSES, _RANK = "PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK"


@dataclass(frozen=True)
class TorchrunNode:
    """A node as torchrun would start it. ``nproc`` None: one process per accelerator.

    ``master_addr`` and ``master_port`` are None where the variables do not say.
    """

    num_nodes: int
    node_rank: int
    nproc: int | None
    master_addr: str | None
    master_port: int | None


def torchrun_node(environ: Mapping[str, str]) -> TorchrunNode | None:
    """Return the node that this process is to start; None without ``PET_NNODES``, and in a rank.

    ``RANK`` and ``WORLD_SIZE`` alone make no rank: Kubeflow's training operator sets them for the pod.
    Raises ConfigError (``launch.torchrun_variables``) for values that name no node.
    """
    nodes = nodes_of_torchrun(environ)
    if not nodes or environ.get("LOCAL_RANK"):
        return None
    rank = environ.get(_RANK, "")
    if nodes > 1 and not rank.isdigit():
        raise _refused(f"there are {nodes} nodes, but {_RANK} does not give this one's number", _RANK, rank)
    if rank and parse_nonnegative_int(rank, nodes) >= nodes:
        raise _refused(f"the nodes have the numbers 0 to {nodes - 1}", _RANK, rank)
    host, port = _endpoint(environ)
    if nodes > 1 and not host:
        raise _refused(f"there are {nodes} nodes, but no address of node 0", "PET_MASTER_ADDR", "")
    return TorchrunNode(nodes, parse_nonnegative_int(rank), _processes(environ), host or None, port)


def nodes_of_torchrun(environ: Mapping[str, str]) -> int:
    """Return the nodes of ``PET_NNODES``, 0 if it is not set. Raises ConfigError for an elastic range."""
    text = environ.get(_NODES, "").strip()
    least, _, most = text.partition(":")
    number = parse_nonnegative_int(least)
    if text and (not number or (most and parse_nonnegative_int(most) != number)):
        raise _refused("a run has one number of nodes from its start to its end", _NODES, text)
    return number


def _processes(environ: Mapping[str, str]) -> int | None:
    text = environ.get(_PROCESSES, "").strip().lower()
    if text in ("", "auto", "gpu"):
        return None
    if text == "cpu":
        return os.cpu_count()
    number = parse_nonnegative_int(text)
    if not number:
        raise _refused("it is no number of processes", _PROCESSES, text)
    return number


def _endpoint(environ: Mapping[str, str]) -> tuple[str, int | None]:
    """Return host and port of node 0: of the static variables, else of the rendezvous endpoint."""
    host, port = environ.get("PET_MASTER_ADDR", ""), environ.get("PET_MASTER_PORT", "")
    if not host:
        host, _, port = environ.get("PET_RDZV_ENDPOINT", "").rpartition(":")
        if not host:
            host, port = port, ""
    port = port or first_set(environ, ("MASTER_PORT",))
    return host.strip("[]"), parse_nonnegative_int(port) or None


def _refused(problem: str, name: str, value: str) -> ConfigError:
    return ConfigError(codes.LAUNCH_TORCHRUN_VARIABLES(name, value or "not set", problem=problem))
