"""A job on Kubernetes: one file for ``kubectl apply``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.core.json_types import JsonObject
from paceline.schedulers.job import SECRET_NAME, ClusterJob, Rendering
from paceline.schedulers.kubernetes.check import check
from paceline.schedulers.kubernetes.gangs import NODE, indexed, job_set_spec
from paceline.schedulers.kubernetes.pods import (
    STORE_KEY,
    config_map,
    indexed_pod,
    job_name,
    launcher_pod,
    metadata,
    queued,
    store_secret,
    torchrun_defaults,
)
from paceline.schedulers.quoted_yaml import documents
from paceline.schedulers.shipped_config import shipped_config

FILE, KUSTOMIZATION = "job.yaml", "kustomization.yaml"
_TRAINER = "trainer.kubeflow.org"
#: PyTorchJob v1 knows its container and port by these names.
_PYTORCH, _PYTORCH_PORT = "pytorch", "pytorchjob-port"
_OPERATORS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

Texts = Mapping[str, str]


def kubernetes_job(job: ClusterJob) -> Rendering:
    """Return the manifest. Raises ConfigError with all that Kubernetes would refuse or lose."""
    texts = shipped_config(job.config, {})
    check(job)
    kind = job.site.kubernetes.kind
    namespace = job.site.kubernetes.namespace
    files = {FILE: documents(config_map(job, texts), *KINDS[kind](job, texts))}
    apply = ("kubectl", "apply", *(("--namespace", namespace) if namespace else ()))
    secret = store_secret(job)
    if not secret:
        return Rendering(files, ((*apply, "-f", str(job.out / FILE)),), _NOTES.get(kind, ()))
    files[KUSTOMIZATION] = documents(_with_secret(job, secret))
    return Rendering(files, ((*apply, "-k", str(job.out)),), _NOTES.get(kind, ()), store_secret=True)


def _with_secret(job: ClusterJob, secret: str) -> JsonObject:
    """Return a kustomization that adds the Secret: its value is in the file that only its owner can read."""
    generated: JsonObject = {
        **metadata(job, secret),
        "files": [f"{STORE_KEY}={SECRET_NAME}"],
        "options": {"disableNameSuffixHash": True},
    }
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [FILE],
        "secretGenerator": [generated],
        # a TrainJob is refused before its TrainingRuntime is there
        "sortOptions": {"order": "fifo"},
    }


def train_job(job: ClusterJob, texts: Texts) -> list[JsonObject]:
    """Return Kubeflow Trainer's TrainJob and its TrainingRuntime, which holds what no patch of one can."""
    name = job_name(job)
    ancestor = {f"{_TRAINER}/trainjob-ancestor-step": "trainer"}
    runtime: JsonObject = {
        "apiVersion": f"{_TRAINER}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(job, name, {f"{_TRAINER}/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            # It sets PET_* where its template names the trainers' job
            "template": {"spec": job_set_spec(job, texts, (), ancestor)},
        },
    }
    spec: JsonObject = {
        "runtimeRef": {"apiGroup": _TRAINER, "kind": "TrainingRuntime", "name": name},
        "trainer": {"numNodes": job.nodes, "numProcPerNode": job.nproc},
    }
    train: JsonObject = {
        "apiVersion": f"{_TRAINER}/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, name, queued(job)),
        "spec": spec,
    }
    return [runtime, train]


def job_set(job: ClusterJob, texts: Texts) -> list[JsonObject]:
    """Return a JobSet, which makes its own headless service."""
    name = job_name(job)
    rank_env = indexed_pod(job, f"{name}-{NODE}-0-0.{name}")
    return [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata(job, name, queued(job)),
            "spec": job_set_spec(job, texts, rank_env, {}),
        }
    ]


def indexed_job(job: ClusterJob, texts: Texts) -> list[JsonObject]:
    """Return an Indexed Job and its headless service.

    When a rank fails its peers leave too, so every pod starts again by itself: each counts its own restarts.
    """
    name = job_name(job)
    service: JsonObject = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
        },
    }
    pod = launcher_pod(job, texts, NODE, indexed_pod(job, f"{name}-0.{name}"))
    spec: JsonObject = {
        **indexed(job),
        "backoffLimitPerIndex": job.max_restarts,
        "maxFailedIndexes": 0,
        "template": {"spec": {**pod, "subdomain": name, "restartPolicy": "Never"}},
    }
    batch: JsonObject = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, name, queued(job)),
        "spec": spec,
    }
    return [service, batch]


def pytorch_job(job: ClusterJob, texts: Texts) -> list[JsonObject]:
    """Return Kubeflow's PyTorchJob v1, whose operator restarts containers in rank_env."""
    name = job_name(job)
    # Its RANK is a node's number, which no process of ours may take for its own
    unset = [word for variable in _OPERATORS for word in ("-u", variable)]
    defaults = {**torchrun_defaults(job, f"{name}-master-0"), "PET_NODE_RANK": "$(RANK)"}
    before = ["env", *unset, *(f"{variable}={value}" for variable, value in defaults.items())]
    port: JsonObject = {"containerPort": job.port, "name": _PYTORCH_PORT}
    pod = launcher_pod(job, texts, _PYTORCH, before=before, ports=[port])
    policy: JsonObject = {"cleanPodPolicy": "Running", "backoffLimit": job.max_restarts}
    if job.fixed_time_limit:
        policy["activeDeadlineSeconds"] = job.fixed_time_limit
    replicas: JsonObject = {"Master": _replicas(1, pod)}
    if job.nodes > 1:
        replicas["Worker"] = _replicas(job.nodes - 1, pod)
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": metadata(job, name, queued(job)),
            "spec": {
                "nprocPerNode": str(job.nproc),
                "runPolicy": policy,
                "pytorchReplicaSpecs": replicas,
            },
        }
    ]


def _replicas(count: int, pod: JsonObject) -> JsonObject:
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}


Objects = Callable[[ClusterJob, Texts], list[JsonObject]]
#: ``launch.kubernetes.kind`` → its objects, and what a reader should know
KINDS: Mapping[str, Objects] = {
    "trainjob": train_job,
    "jobset": job_set,
    "job": indexed_job,
    "pytorchjob": pytorch_job,
}
_NOTES: Mapping[str, tuple[str, ...]] = {
    "pytorchjob": (
        "PyTorchJob v1 knows no exit codes: every failure counts against launch.max_restarts, a refused"
        " start and a stop that saved too",
    ),
}
