"""A JobSet's gangs: the trainers as one Indexed Job, and generation servers that are ready before them.

What follows when a pod fails is made from ``exit_codes.AFTER``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.config.sections.rollout import SERVED
from paceline.core.json_types import Json, JsonObject
from paceline.launch.run_secret import VALUE as STORE_SECRET
from paceline.launch.supervision.exit_codes import AFTER, After
from paceline.launch.supervision.generation_servers import MODULE
from paceline.schedulers.job import ClusterJob
from paceline.schedulers.kubernetes.pods import (
    grace_seconds,
    job_name,
    launcher_pod,
    literal,
    placement,
    secret_variables,
    shared_memory,
    store_secret,
)

SERVERS = "servers"
_PORT = 8000
_PROBE_SECONDS = 10
#: vLLM downloads and compiles before it answers
_STARTS_WITHIN = 3600
_LEAVE_SECONDS = 15


def server_settings(job: ClusterJob) -> list[str]:
    """Return the KEY=VALUE by which trainers find the servers; none without them."""
    options = job.site.kubernetes.servers
    if options is None:
        return []
    name, key = job_name(job), {"api_key_env": STORE_SECRET} if store_secret(job) else {}
    urls = [f"http://{name}-{SERVERS}-0-{index}.{name}:{_PORT}" for index in range(options.count)]
    return [f"training.rollout.servers={json.dumps([{'url': url, **key} for url in urls])}"]


def servers_gang(job: ClusterJob) -> list[JsonObject]:
    """Return the replicated job of the servers; none without them."""
    options = job.site.kubernetes.servers
    if options is None:
        return []
    grace = grace_seconds(job)
    cards: JsonObject = {job.site.kubernetes.gpu_resource: str(options.gpus)}
    volume, mount = shared_memory(job)
    container: JsonObject = {
        "name": SERVERS,
        "image": options.image,
        "command": [literal(word) for word in _command(job)],
        "env": [
            {"name": "VLLM_SERVER_DEV_MODE", "value": "1"},
            {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
            *_api_key(job),
            *secret_variables(job, hidden=(STORE_SECRET,)),
        ],
        "ports": [{"containerPort": _PORT, "name": "http", "protocol": "TCP"}],
        "resources": {"limits": cards} if options.gpus else {},
        "volumeMounts": [mount],
        "startupProbe": {**_health(), "failureThreshold": _STARTS_WITHIN // _PROBE_SECONDS},
        "readinessProbe": _health(),
        # The trainers finish their step and save first
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(grace)]}}},
    }
    pod: JsonObject = {
        "containers": [container],
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": grace + _LEAVE_SECONDS,
        "volumes": [volume],
        **placement(job),
    }
    spec: JsonObject = {
        "completionMode": "Indexed",
        "completions": options.count,
        "parallelism": options.count,
        "backoffLimit": job.max_restarts,
        "template": {"spec": pod},
    }
    return [{"name": SERVERS, "replicas": 1, "template": {"spec": spec}}]


def _command(job: ClusterJob) -> list[str]:
    options, model = job.site.kubernetes.servers, job.served
    assert options is not None and model is not None
    argv = [
        "python3",
        "-m",
        MODULE,
        "--model",
        model.name,
        "--served-model-name",
        SERVED,
        "--port",
        str(_PORT),
    ]
    argv += ["--host", "0.0.0.0", "--max-model-len", str(model.max_length)]
    argv += ["--logprobs-mode", "processed_logprobs", "--tensor-parallel-size", str(max(1, options.gpus))]
    argv += ["--tokenizer", model.tokenizer] if model.tokenizer else []
    argv += ["--revision", model.revision] if model.revision else []
    return [*argv, *options.arguments]


def _api_key(job: ClusterJob) -> list[Json]:
    secret = store_secret(job)
    if not secret:
        return []
    return [{"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": secret, "key": "secret"}}}]


def _health() -> JsonObject:
    return {"httpGet": {"path": "/health", "port": _PORT}, "periodSeconds": _PROBE_SECONDS}


#: Nothing follows a code that means *done*: there is no action that makes such a pod a success. In the order
#: in which a failed pod is held against them.
_ACTIONS: Mapping[str, tuple[After, ...]] = {
    "FailJob": (After.FAIL, After.DONE),
    "Ignore": (After.RESUME,),
    "Count": (After.COUNT,),
}
#: The pod was evicted, or its node has gone: not the run's fault.
_DISRUPTED: JsonObject = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


def pod_failure_policy(container: str) -> JsonObject:
    """Return the policy of a Job whose pods run ``container``, and are never restarted in place.

    A code that no rule names counts.
    """
    rules: list[Json] = []
    for action, meanings in _ACTIONS.items():
        values = sorted(int(code) for code, follows in AFTER.items() if follows in meanings and code)
        condition: JsonObject = {"containerName": container, "operator": "In", "values": values}
        rules.append({"action": action, "onExitCodes": condition})
        if action == "Ignore":
            rules.append(_DISRUPTED)
    return {"rules": rules}


def gang_failure_policy(max_restarts: int, job: str) -> JsonObject:
    """Return the policy of a JobSet: all its pods start again, ``max_restarts`` times.

    A code that fails a Job ends the JobSet, and so does its deadline. ``job``: the trainers'.
    """
    refused: JsonObject = {
        "name": "endedForGood",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
        "targetReplicatedJobs": [job],
    }
    return {"maxRestarts": max_restarts, "rules": [refused]}


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
