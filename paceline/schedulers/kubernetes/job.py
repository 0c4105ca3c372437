"""A job on Kubernetes: one file for ``kubectl apply``; its state, stop and next start by ``kubectl``.

What Kubernetes would refuse, or a pod would lose, is found before: all findings at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.launch.launch_record import LaunchedBy, check_owner
from paceline.schedulers import codes
from paceline.schedulers.control import JobControl, answer_of
from paceline.schedulers.job import SECRET_NAME, ClusterJob, Rendering
from paceline.schedulers.kubernetes.gangs import NODE, indexed, job_set_spec
from paceline.schedulers.kubernetes.pods import (
    STORE_KEY,
    config_map,
    indexed_pod,
    job_name,
    launcher_pod,
    metadata,
    mounts,
    object_name,
    queued,
    run_folder,
    store_secret,
    torchrun_defaults,
)
from paceline.schedulers.templates import documents
from paceline.schedulers.write_files import shipped_config

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_QUALIFIED = re.compile(
    r"([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
)
_QUANTITY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,3})?(m|k|[MGTPE]|[KMGTPE]i)?")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_HERE = "launch.kubernetes"
GANG_KINDS = ("trainjob", "jobset")


def check(job: ClusterJob) -> None:
    """Raise ConfigError with all findings."""
    findings = [*_missing(job), *_names(job), *_amounts(job), *_secrets(job), *_mounts(job)]
    if findings:
        raise ConfigError(*findings)


def _missing(job: ClusterJob) -> Iterator[Diagnostic]:
    site, options = job.site, job.site.kubernetes
    if not site.image:
        yield _refused(
            "launch.image", "not given", "a pod runs an image", "launch.image: an image with paceline"
        )
    if site.modules:
        reason = "a pod loads no environment modules"
        yield _refused("launch.modules", ", ".join(site.modules), reason, "put the software into the image")
    if job.tasks:
        reason = "arrays of runs are Slurm's"
        yield _refused("sweep", f"{len(job.tasks)} runs", reason, "launch each run by itself")
    if options.servers is not None:
        if options.kind not in GANG_KINDS:
            reason = "servers are a second gang, which a trainjob or a jobset has"
            yield _refused(f"{_HERE}.kind", options.kind, reason, f"{_HERE}.kind: trainjob")
        if job.served is None:
            reason = "there are no rollouts of a model that servers could load"
            hint = "training.rollout, and model.name_or_path that the servers find too"
            yield _refused(f"{_HERE}.servers", "given", reason, hint)
    if not job.checkpoint_url and run_folder(job) != job.run:
        yield codes.SCHEDULERS_LOST("training.checkpoint_url", f"not given; the run's directory is {job.run}")


def _names(job: ClusterJob) -> Iterator[Diagnostic]:
    options = job.site.kubernetes
    selector = {key: str(value) for key, value in (options.node_selector or {}).items()}
    taints = options.tolerations
    checked = [
        ("namespace", options.namespace, _LABEL),
        ("queue", options.queue, _NAME),
        ("service_account", options.service_account, _NAME),
        ("gpu_resource", options.gpu_resource, _QUALIFIED),
        *(("image_pull_secrets", name, _NAME) for name in options.image_pull_secrets),
        *(("rdma", name, _QUALIFIED) for name in options.rdma or {}),
        *(("node_selector", key, _QUALIFIED) for key in selector),
        *(("node_selector", value, _LABEL_VALUE) for value in selector.values()),
        *(("tolerations", taint.key, _QUALIFIED) for taint in taints),
        *(("tolerations", taint.value, _LABEL_VALUE) for taint in taints),
    ]
    for key, value, pattern in checked:
        if value is not None and not pattern.fullmatch(value):
            yield _refused(f"{_HERE}.{key}", value, "it is no name in Kubernetes", "letters, digits and -")
    for taint in taints:
        if (taint.operator == "equal") != (taint.value is not None):
            reason = "value belongs to the operator equal, and to no other"
            yield _refused(
                f"{_HERE}.tolerations", f"operator {taint.operator}", reason, "give both, or neither"
            )
        if taint.key is None and taint.operator == "equal":
            reason = "without a key the operator must be exists"
            yield _refused(f"{_HERE}.tolerations", "no key", reason, "give the taint's key")


def _amounts(job: ClusterJob) -> Iterator[Diagnostic]:
    options = job.site.kubernetes
    sizes = [("launch.memory", job.site.memory), (f"{_HERE}.shm_size", options.shm_size)]
    for key, value in sizes:
        if value is not None and not _QUANTITY.fullmatch(value):
            yield _refused(key, value, "it is no quantity in Kubernetes", "64Gi or 64G")
    for name, count in (options.rdma or {}).items():
        if not re.fullmatch(r"[1-9][0-9]{0,5}", str(count)):
            yield _refused(
                f"{_HERE}.rdma", f"{name}: {count}", "a pod takes whole numbers of it", "1 or more"
            )


def _secrets(job: ClusterJob) -> Iterator[Diagnostic]:
    for name, source in job.secrets.items():
        secret, slash, key = source.partition("/")
        if not (slash and _NAME.fullmatch(secret) and _SECRET_KEY.fullmatch(key)):
            reason = "a pod's secret variable comes from a key of a Secret"
            yield _refused(
                f"launch.secrets.{name}", source, reason, f"{name}: NAME/KEY, as kubectl get secret shows"
            )


def _mounts(job: ClusterJob) -> Iterator[Diagnostic]:
    targets: set[str] = set()
    for text, mount in zip(job.site.mounts, mounts(job), strict=True):
        reason = ""
        if not mount.target.startswith("/") or mount.mode not in ("", "ro"):
            reason = "it is not SOURCE:/FOLDER or SOURCE:/FOLDER:ro"
        elif mount.target in targets:
            reason = "two volumes lie at the same place"
        elif not mount.source.startswith("/") and not _NAME.fullmatch(mount.source):
            reason = "its source is neither a folder nor the name of a PersistentVolumeClaim"
        targets.add(mount.target)
        if reason:
            yield _refused("launch.mounts", text, reason, "CLAIM:/folder, or /folder/of/the/node:/folder")


def _refused(where: str, value: str, reason: str, hint: str) -> Diagnostic:
    return codes.SCHEDULERS_VALUE(where, value[:200], scheduler="Kubernetes", reason=reason, hint=hint)


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
        return Rendering(
            files, ((*apply, "-f", str(job.out / FILE)),), _NOTES.get(kind, ()), name=object_name(job)
        )
    files[KUSTOMIZATION] = documents(_with_secret(job, secret))
    submit = (*apply, "-k", str(job.out))
    return Rendering(files, (submit,), _NOTES.get(kind, ()), store_secret=True, name=object_name(job))


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


_CONDITIONS = "{range .status.conditions[*]}{.type}={.status} {.reason} {.message}{'\\n'}{end}"
#: conditions of an object that starts nothing any more
_ENDED = ("Complete=True", "Completed=True", "Failed=True", "Succeeded=True")


class KubernetesControl(JobControl):
    """A job's name is ``NAMESPACE/KIND/NAME``; the context's namespace where the first is empty."""

    def state(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Return the object's conditions, the last one first."""
        lines = _conditions(launched.job, environ)
        if lines is None:
            return f"{launched.job} is not there (deleted, or never applied)"
        return f"{launched.job}: {'; '.join(reversed(lines)) or 'no condition yet'}"

    def stop(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Delete the object: its pods get SIGTERM, and the time to save; nothing starts them again."""
        answer_of(("kubectl", "delete", *_words(launched.job), "--ignore-not-found", "--wait=false"), environ)
        return f"{launched.job} is deleted; its pods save and end"

    def resume(self, launched: LaunchedBy, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return ``kubectl replace`` of the job's files; ``apply`` leaves an ended object as it is."""
        lines = _conditions(launched.job, environ)
        if lines is not None and not any(line.startswith(_ENDED) for line in lines):
            raise ConfigError(
                codes.SCHEDULERS_RUNS("launched-by.json", f"{launched.job}: {'; '.join(lines)}")
            )
        folder = Path(launched.files or ".")
        if not launched.files or not (folder / FILE).is_file():
            raise ConfigError(codes.SCHEDULERS_FILES_GONE(str(folder / FILE), scheduler="kubernetes"))
        for file in filter(Path.is_file, (folder / FILE, folder / KUSTOMIZATION)):
            check_owner(file)
        namespace = launched.job.split("/")[0]
        where = ("--namespace", namespace) if namespace else ()
        files = ("-k", str(folder)) if (folder / KUSTOMIZATION).is_file() else ("-f", str(folder / FILE))
        return ("kubectl", "replace", "--force", *where, *files)


def _words(job: str) -> tuple[str, ...]:
    namespace, kind, name = job.split("/")
    return (kind, name, *(("--namespace", namespace) if namespace else ()))


def _conditions(job: str, environ: Mapping[str, str]) -> list[str] | None:
    """Return the object's conditions as lines; None where there is no such object."""
    get = ("kubectl", "get", *_words(job), "--ignore-not-found")
    if not answer_of((*get, "-o", "name"), environ).strip():
        return None
    return answer_of((*get, "-o", f"jsonpath={_CONDITIONS}"), environ).splitlines()


CONTROL = KubernetesControl()
