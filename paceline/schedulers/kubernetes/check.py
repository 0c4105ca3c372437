"""What Kubernetes would refuse, or a pod would lose: all findings at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.schedulers import codes
from paceline.schedulers.job import ClusterJob
from paceline.schedulers.kubernetes.pods import mounts, run_folder

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
