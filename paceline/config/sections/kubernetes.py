"""``launch.kubernetes:`` — what only a job on Kubernetes needs."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import (
    Int,
    OneOf,
    OptMapping,
    OptText,
    Section,
    Text,
    Texts,
    Word,
    optional,
)

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
