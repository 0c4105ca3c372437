"""The pods of a job: one launcher of Paceline each, with its volumes, variables, probes and time to save."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from paceline.config.sections.launch import EFFECTS
from paceline.core.json_types import Json, JsonObject
from paceline.launch.launch_record import FILES, JOB, SCHEDULER
from paceline.launch.run_secret import VALUE as STORE_SECRET
from paceline.schedulers.job import ClusterJob, dns_name

#: Where a pod has the config's files and, without a volume for them, the run's.
CONFIG_FOLDER, WORK_FOLDER = "/etc/paceline", "/paceline"
STORE_KEY = "secret"
#: between a save's end and the kill: ranks leave, and the launcher says why
_LEAVE_SECONDS = 15
_PROBE = ("python3", "-m", "paceline.runtime.failures.pod_probe")
_PROBE_SECONDS, _PROBE_TIMEOUT = 30, 20
_SILENT_PROBES = 4
_STARTS_WITHIN = 24 * 3600  # downloads and the preparation of data belong to the start
_SHM = "/dev/shm"


def torchrun_defaults(job: ClusterJob, address: str) -> dict[str, str]:
    """Return torchrun's variables for a pod's launcher, without the pod's number."""
    return {
        "PET_NNODES": str(job.nodes),
        "PET_NPROC_PER_NODE": str(job.nproc),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(job.port),
    }


def indexed_pod(job: ClusterJob, address: str) -> list[Json]:
    """Return the variables by which a pod of an Indexed Job knows its place."""
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    index: JsonObject = {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return [
        index,
        *({"name": name, "value": value} for name, value in torchrun_defaults(job, address).items()),
    ]


def literal(text: str) -> str:
    """Return ``text`` as the kubelet leaves it: it reads ``$(NAME)`` in commands and variables."""
    return text.replace("$", "$$")


def object_name(job: ClusterJob) -> str:
    """Return ``NAMESPACE/KIND/NAME``, the first empty for the context's namespace."""
    options = job.site.kubernetes
    return f"{options.namespace or ''}/{options.kind}/{job_name(job)}"


def job_name(job: ClusterJob) -> str:
    """Return the name of the job and all that belongs to it."""
    return dns_name(job.name)


def store_secret(job: ClusterJob) -> str:
    """Return the Secret with which the ranks sign; empty where the site has one, or none is needed."""
    alone = job.nodes == 1 and job.site.kubernetes.servers is None
    if alone or STORE_SECRET in job.secrets or job.site.allow_unsigned_store:
        return ""
    return f"{job_name(job)}-store"


def run_folder(job: ClusterJob) -> str:
    """Return the run's directory in a pod: as in the config where a volume has it, else the pod's own."""
    held = [mount for mount in mounts(job) if PurePosixPath(job.run).is_relative_to(mount.target)]
    return job.run if held else f"{WORK_FOLDER}/run"


@dataclass(frozen=True)
class Mount:
    """``source``: a folder of the node (absolute), or the name of a PersistentVolumeClaim.

    ``mode``: ``ro``, or empty.
    """

    source: str
    target: str
    mode: str


def mounts(job: ClusterJob) -> list[Mount]:
    """Return the site's mounts: ``SOURCE:FOLDER`` or ``SOURCE:FOLDER:ro``."""
    parts = (text.split(":", 2) for text in job.site.mounts)
    return [Mount(*(*words, "", "")[:3]) for words in parts]


def launcher_pod(
    job: ClusterJob,
    texts: Mapping[str, str],
    container: str,
    rank_env: Sequence[Json] = (),
    before: Sequence[str] = (),
    ports: Sequence[Json] = (),
) -> JsonObject:
    """Return the pod's spec, without what happens when it fails.

    ``rank_env``: variables that say which node it is; none where a controller sets them. ``before``: words
    that begin the command, as the kubelet reads them.
    """
    options = job.site.kubernetes
    folder = run_folder(job)
    settings = [f"training.output_dir={folder}"]
    if job.checkpoint_url and job.upload_timeout is None:
        settings.append(f"training.upload_timeout={job.site.save_seconds}")
    here = replace(job, overrides=(*job.overrides, *settings))
    command = here.command(f"{CONFIG_FOLDER}/{job.config.name}", sized=False)
    main: JsonObject = {
        "name": container,
        "image": job.site.image or "",
        "command": [*before, *map(literal, command)],
        "workingDir": _working_folder(job),
        "env": [*rank_env, *_variables(job), *secret_variables(job)],
        "resources": _resources(job),
        "volumeMounts": _volume_mounts(job),
        "startupProbe": _probe(folder, _STARTS_WITHIN // _PROBE_SECONDS),
        "livenessProbe": _probe(folder, _SILENT_PROBES),
    }
    if ports:
        main["ports"] = ports
    if options.rdma:
        main["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    spec: JsonObject = {
        "containers": [main],
        "terminationGracePeriodSeconds": grace_seconds(job),
        "volumes": _volumes(job, texts),
    }
    return {**spec, **placement(job)}


def grace_seconds(job: ClusterJob) -> int:
    """Return how long a pod has from SIGTERM to SIGKILL. The launcher is its first process, and gets both."""
    upload = job.upload_timeout or 0.0 if job.checkpoint_url else 0.0
    return max(job.site.save_seconds, math.ceil(upload)) + _LEAVE_SECONDS


def placement(job: ClusterJob) -> JsonObject:
    """Return the keys of a pod's spec that say where it may run."""
    options = job.site.kubernetes
    spec: JsonObject = {}
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if options.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if options.node_selector:
        spec["nodeSelector"] = {key: str(value) for key, value in options.node_selector.items()}
    if options.tolerations:
        spec["tolerations"] = [
            {
                key: value
                for key, value in (
                    ("key", one.key),
                    ("operator", one.operator.capitalize()),
                    ("value", one.value),
                    ("effect", EFFECTS.get(one.effect or "")),
                )
                if value is not None
            }
            for one in options.tolerations
        ]
    return spec


def config_map(job: ClusterJob, texts: Mapping[str, str]) -> JsonObject:
    """Return the ConfigMap with the config's files; their paths are in the volume's ``items``."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, f"{job_name(job)}-config"),
        "data": {_key_of(index): text for index, text in enumerate(texts.values())},
    }


def metadata(job: ClusterJob, name: str, labels: Mapping[str, str] | None = None) -> JsonObject:
    """Return an object's metadata."""
    fields: JsonObject = {"name": name}
    if job.site.kubernetes.namespace:
        fields["namespace"] = job.site.kubernetes.namespace
    if labels:
        fields["labels"] = dict(labels)
    return fields


def queued(job: ClusterJob) -> dict[str, str]:
    """Return the label by which Kueue admits a job."""
    queue = job.site.kubernetes.queue
    return {"kueue.x-k8s.io/queue-name": queue} if queue else {}


def _key_of(index: int) -> str:
    return f"file-{index}"


def _working_folder(job: ClusterJob) -> str:
    held = any(job.folder.is_relative_to(mount.target) for mount in mounts(job))
    return str(job.folder) if held else WORK_FOLDER


def _variables(job: ClusterJob) -> list[Json]:
    record = {
        SCHEDULER: "kubernetes",
        JOB: object_name(job),
        FILES: str(job.out),
    }
    values = {**record, **job.interfaces, **job.env}
    return [{"name": name, "value": literal(value)} for name, value in values.items()]


def secret_variables(job: ClusterJob, hidden: Sequence[str] = ()) -> list[Json]:
    """Return the variables whose values are in Secrets, without those that are ``hidden``."""
    sources = dict(job.secrets)
    if own := store_secret(job):
        sources[STORE_SECRET] = f"{own}/{STORE_KEY}"
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, (secret, _, key) in ((name, value.partition("/")) for name, value in sources.items())
        if name not in hidden
    ]


def _resources(job: ClusterJob) -> JsonObject:
    options, site = job.site.kubernetes, job.site
    limits: dict[str, str] = {key: str(count) for key, count in (options.rdma or {}).items()}
    if job.gpus_per_node:
        limits[options.gpu_resource] = str(job.gpus_per_node)
    if site.memory:
        limits["memory"] = site.memory
    # A limit of CPU time would slow the run down where cores are idle
    cores = {"cpu": str(site.cpus_per_node)} if site.cpus_per_node else {}
    amounts = {"limits": limits, "requests": {**cores, **limits}}
    return {key: values for key, values in amounts.items() if values}


def shared_memory(job: ClusterJob) -> tuple[JsonObject, JsonObject]:
    """Return the volume of /dev/shm, which a container runtime makes too small, and its mount."""
    memory: JsonObject = {"medium": "Memory"}
    if job.site.kubernetes.shm_size:
        memory["sizeLimit"] = job.site.kubernetes.shm_size
    return {"name": "shm", "emptyDir": memory}, {"name": "shm", "mountPath": _SHM}


def _volumes(job: ClusterJob, texts: Mapping[str, str]) -> list[Json]:
    items = [{"key": _key_of(index), "path": path} for index, path in enumerate(texts)]
    return [
        {"name": "config", "configMap": {"name": f"{job_name(job)}-config", "items": items}},
        shared_memory(job)[0],
        {"name": "work", "emptyDir": {}},
        *({"name": f"mount-{index}", **_source(mount)} for index, mount in enumerate(mounts(job))),
    ]


def _source(mount: Mount) -> JsonObject:
    if mount.source.startswith("/"):
        return {"hostPath": {"path": mount.source}}
    return {"persistentVolumeClaim": {"claimName": mount.source}}


def _volume_mounts(job: ClusterJob) -> list[Json]:
    own: list[Json] = [
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        shared_memory(job)[1],
        {"name": "work", "mountPath": WORK_FOLDER},
    ]
    for index, mount in enumerate(mounts(job)):
        read_only: JsonObject = {"readOnly": True} if mount.mode else {}
        own.append({"name": f"mount-{index}", "mountPath": mount.target, **read_only})
    return own


def _probe(folder: str, failures: int) -> JsonObject:
    """Return a probe of the heartbeats that this pod's ranks write."""
    return {
        "exec": {"command": [*_PROBE, literal(folder)]},
        "periodSeconds": _PROBE_SECONDS,
        "timeoutSeconds": _PROBE_TIMEOUT,
        "failureThreshold": failures,
    }
