"""``launch:`` — processes, nodes, what a cluster's site wants around them, and keys of single schedulers."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import (
    Bool,
    Float,
    Int,
    OneOf,
    OptInt,
    OptMapping,
    OptPath,
    OptText,
    Section,
    Text,
    Texts,
    Word,
    misfit,
    optional,
    to_text,
)
from paceline.core.json_types import Json

#: a taint's effects: as they are read, and as Kubernetes spells them
EFFECTS = {word.lower(): word for word in ("NoSchedule", "PreferNoSchedule", "NoExecute")}


class Toleration(Section):
    """A taint of nodes that the pods tolerate, with the names of Kubernetes."""

    key: OptText = Field(default=None, description="The taint's key; every taint when empty.")
    operator: Annotated[str, Word("exists", "equal")] = Field(
        default="exists", description="exists, or equal: the taint's value is `value`."
    )
    value: OptText = Field(default=None, description="With equal, the taint's value.")
    effect: Annotated[str | None, BeforeValidator(optional(OneOf(tuple(EFFECTS))))] = Field(
        default=None, description="NoSchedule, PreferNoSchedule or NoExecute; all of them when empty."
    )


class ServerGang(Section):
    """Generation servers (vLLM's) in pods of their own, which the trainers' rollouts ask."""

    image: Text = Field(description="With launch.kubernetes.servers, the servers' image: one with vLLM.")
    count: Int = Field(default=1, ge=1, description="Servers, a pod each.")
    gpus: Int = Field(default=1, ge=0, description="Accelerators of each server.")
    arguments: Texts = Field(
        default=(), description="Further arguments of vLLM's server: `[--enable-lora, --max-lora-rank, 16]`."
    )


class KubernetesOptions(Section):
    """A job on Kubernetes."""

    kind: Annotated[str, Word("trainjob", "jobset", "job", "pytorchjob")] = Field(
        default="trainjob",
        description=(
            "What is written: trainjob (Kubeflow Trainer v2, with a TrainingRuntime), jobset, job (an Indexed"
            " Job) or pytorchjob (Kubeflow's v1)."
        ),
    )
    namespace: OptText = Field(default=None, description="Namespace; the context's when empty.")
    queue: OptText = Field(default=None, description="Kueue's LocalQueue that admits the job.")
    service_account: OptText = Field(default=None, description="Service account of the pods.")
    image_pull_secrets: Texts = Field(default=(), description="Secrets with which images are pulled.")
    node_selector: OptMapping = Field(default=None, description="Labels that the nodes must have.")
    tolerations: tuple[Toleration, ...] = Field(
        default=(), description="Taints that the pods tolerate: `[{key: nvidia.com/gpu}]`."
    )
    gpu_resource: Text = Field(default="nvidia.com/gpu", description="Resource that counts accelerators.")
    rdma: OptMapping = Field(
        default=None,
        description="Resources of the fast network, a pod: `{rdma/hca: 8}`. Such pods may lock memory.",
    )
    shm_size: OptText = Field(
        default=None, description="Limit of /dev/shm, a part of the pod's memory: `64Gi`; none when empty."
    )
    servers: ServerGang | None = Field(
        default=None,
        description=(
            "Generation servers for training.rollout, a second gang of a trainjob or jobset:"
            " `{image: vllm/vllm-openai:v0.32.0, count: 2}`."
        ),
    )


class SkyPilotOptions(Section):
    """A task of SkyPilot."""

    infra: OptText = Field(default=None, description="Where: `aws/us-east-1`, `k8s`; any when empty.")
    use_spot: Bool = Field(default=False, description="Take spot instances, which may go away.")
    setup: Texts = Field(
        default=(), description="Shell commands that prepare a node: `[pip install paceline]`."
    )


class DstackOptions(Section):
    """A task of dstack."""

    backends: Texts = Field(default=(), description="Clouds to choose from; all when empty.")
    spot: Bool = Field(default=False, description="Take spot instances, which may go away.")
    fleets: Texts = Field(default=(), description="Fleets whose instances are used; any when empty.")


class RayOptions(Section):
    """A job on a Ray cluster."""

    address: Text = Field(default="http://127.0.0.1:8265", description="Address of the cluster's dashboard.")
    placement_timeout: Float = Field(
        default=3600.0, gt=0, description="Seconds to wait until the cluster has the nodes free."
    )


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(r"(?:(?P<days>\d{1,4})-)?(?P<hours>\d{1,4}):(?P<minutes>\d{2})(?::(?P<seconds>\d{2}))?")


def seconds_of(text: str) -> int | None:
    """Return the seconds of ``90m``, ``12h``, ``2d``, ``12:00:00`` or ``1-12:00:00``; None for another text.

    A number without a unit is none: Slurm's are minutes, Kubernetes' seconds.
    """
    if match := re.fullmatch(r"(\d{1,8})([smhd])", text.strip().lower()):
        return int(match[1]) * _UNITS[match[2]]
    if match := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return None


def to_time_limit(value: Json) -> str:
    """Accept a time of ``seconds_of``, at least one second. Raises PydanticCustomError otherwise."""
    text = to_text(value).strip()
    if not seconds_of(text):
        raise misfit("must be a time with a unit, as 90m, 12h or 1-12:00:00")
    return text


OptTimeLimit = Annotated[str | None, BeforeValidator(optional(to_time_limit))]


_RANGE = re.compile(r"(\d{1,6}):(\d{1,6})")


def to_nodes(value: Json) -> str:
    """Accept ``3:4``, the fewest and the most. Raises PydanticCustomError otherwise."""
    text = to_text(value).strip()
    match = _RANGE.fullmatch(text)
    if match is None or not 0 < int(match[1]) <= int(match[2]):
        raise misfit("must be the fewest and the most nodes, as 3:4; launch.nnodes is a fixed number")
    return text


OptNodes = Annotated[str | None, BeforeValidator(optional(to_nodes))]


class LaunchSection(Section):
    """Numbers of processes and nodes, and what a site wants. Command-line options take precedence."""

    nproc: OptInt = Field(
        default=None,
        ge=1,
        description="Processes on this node; when empty one per accelerator, or 1 on a CPU.",
    )
    nnodes: Int = Field(default=1, ge=1, description="Number of nodes.")
    nodes: OptNodes = Field(
        default=None,
        description="Fewest and most nodes of a run, `3:4`: it goes on without a node that was lost or fails"
        " twice, from the newest checkpoint, and with it once it is back. The most are `nnodes`.",
    )
    rejoin_timeout: Int = Field(
        default=60, ge=1, description="Seconds that `launch.nodes` waits for a node that was lost."
    )
    node_rank: Int = Field(default=0, ge=0, description="Rank of this node.")
    master_addr: Text = Field(default="127.0.0.1", description="Address of node 0.")
    master_port: OptInt = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port on node 0; a free one is chosen when empty (one node only).",
    )
    allow_unsigned_store: Bool = Field(
        default=False,
        description="Start on several nodes without a secret (`PACELINE_STORE_SECRET_FILE`); anyone who"
        " can reach the port where the ranks connect can then end the run.",
    )
    # What `paceline launch` requests of every scheduler
    gpus_per_node: OptInt = Field(
        default=None, ge=0, description="Accelerators of each node for `paceline launch`; 0: none."
    )
    gpu: OptText = Field(
        default=None,
        description="The nodes' accelerator (`H100`), by which `paceline launch` plans memory and time.",
    )
    cpus_per_node: OptInt = Field(default=None, ge=1, description="CPU cores to request on each node.")
    memory: OptText = Field(default=None, description="Host memory to request on each node: `256G`.")
    time_limit: OptTimeLimit = Field(
        default=None,
        description="Time to request (`12h`, `1-12:00:00`); when empty from the plan's forecast.",
    )
    save_seconds: Int = Field(
        default=120, ge=1, description="Seconds before the end of its time at which a job begins to save."
    )
    max_restarts: OptInt = Field(
        default=None,
        ge=0,
        description="Restarts after failures that can heal, without a newer checkpoint; when empty none by"
        " `paceline train`, 3 by a scheduler's job.",
    )
    image: OptText = Field(default=None, description="Container image of the job's ranks.")
    mounts: Texts = Field(default=(), description="What the container sees: `/host/folder:/folder`.")
    env: OptMapping = Field(default=None, description="Variables of the ranks; no secrets.")
    secrets: OptMapping = Field(
        default=None,
        description="Variable: where its value is: a file on the nodes, or `NAME/KEY` of Kubernetes.",
    )
    modules: Texts = Field(default=(), description="Environment modules to load on each node.")
    interface: OptText = Field(default=None, description="Network interface between the nodes: `ib0`.")
    # Slurm
    partition: OptText = Field(default=None, description="Slurm: partition.")
    account: OptText = Field(default=None, description="Slurm: account.")
    qos: OptText = Field(default=None, description="Slurm: quality of service.")
    constraint: OptText = Field(default=None, description="Slurm: features that the nodes must have.")
    reservation: OptText = Field(default=None, description="Slurm: reservation.")
    exclusive: Bool = Field(default=False, description="Slurm: whole nodes.")
    container: Annotated[str, Word("none", "pyxis", "apptainer", false="none")] = Field(
        default="none", description="Slurm: what runs `launch.image`: pyxis or apptainer."
    )
    array_limit: OptInt = Field(default=None, ge=1, description="Slurm: runs of a sweep at the same time.")
    sbatch_options: Texts = Field(
        default=(), description="Slurm: further options, `--mail-type=FAIL`, as sbatch reads them."
    )
    kubernetes: KubernetesOptions = Field(
        default=KubernetesOptions(), description="What only a job on Kubernetes needs."
    )
    ray: RayOptions = Field(default=RayOptions(), description="What only a job on Ray needs.")
    skypilot: SkyPilotOptions = Field(
        default=SkyPilotOptions(), description="What only a task of SkyPilot needs."
    )
    dstack: DstackOptions = Field(default=DstackOptions(), description="What only a task of dstack needs.")
    # Open MPI, MPICH, Intel MPI and ssh
    mpi: Annotated[str, Word("openmpi", "mpich", "intel")] = Field(
        default="openmpi", description="Which MPI's command a launch writes: openmpi, mpich or intel."
    )
    hostfile: OptPath = Field(
        default=None, description="ssh and MPI: file of hosts in DeepSpeed's format, `NAME slots=PROCESSES`."
    )

    @property
    def range_of_nodes(self) -> tuple[int, int]:
        """The fewest and the most nodes of a start."""
        least, _, most = (self.nodes or f"{self.nnodes}:{self.nnodes}").partition(":")
        return int(least), int(most)
