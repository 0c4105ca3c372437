"""A JobSet's gangs: the trainers as one Indexed Job, and what follows when one of its pods fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.core.json_types import Json, JsonObject
from paceline.schedulers.job import ClusterJob
from paceline.schedulers.kubernetes.failure_policy import gang_failure_policy, pod_failure_policy
from paceline.schedulers.kubernetes.pods import launcher_pod
from paceline.schedulers.kubernetes.servers import SERVERS, server_settings, servers_gang

#: Kubeflow Trainer knows the trainers' job and container by this name.
NODE = "node"


def job_set_spec(
    job: ClusterJob, texts: Mapping[str, str], rank_env: Sequence[Json], labels: Mapping[str, str]
) -> JsonObject:
    """Return the spec of a JobSet. ``rank_env``: as in ``launcher_pod``; ``labels``: of the trainers' Job."""
    servers = servers_gang(job)
    trainers: JsonObject = {
        "name": NODE,
        "replicas": 1,
        **({"dependsOn": [{"name": SERVERS, "status": "Ready"}]} if servers else {}),
        "template": {
            **({"metadata": {"labels": dict(labels)}} if labels else {}),
            "spec": _trainers(job, texts, rank_env),
        },
    }
    return {
        "failurePolicy": gang_failure_policy(job.max_restarts, NODE),
        # Ranks meet before their pods are ready
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [NODE]},
        "replicatedJobs": [*servers, trainers],
    }


def _trainers(job: ClusterJob, texts: Mapping[str, str], rank_env: Sequence[Json]) -> JsonObject:
    """Return the spec of the trainers' Job. One failed pod fails it, and the JobSet starts all again."""
    served = replace(job, overrides=(*job.overrides, *server_settings(job)))
    pod = launcher_pod(served, texts, NODE, rank_env)
    return {
        **indexed(job),
        "backoffLimit": 0,
        "template": {"spec": {**pod, "restartPolicy": "Never"}},
    }


def indexed(job: ClusterJob) -> JsonObject:
    """Return the keys of a Job whose pods have numbers and run at the same time."""
    pods: JsonObject = {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes}
    limit: JsonObject = {"activeDeadlineSeconds": job.fixed_time_limit} if job.fixed_time_limit else {}
    return {**pods, **limit, "podFailurePolicy": pod_failure_policy(NODE)}
