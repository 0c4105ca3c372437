"""Generation servers as a second gang of a JobSet: they are ready before the trainers start."""

from __future__ import annotations

import json

from paceline.config.sections.rollout import SERVED
from paceline.core.json_types import Json, JsonObject
from paceline.launch.run_secret import VALUE as STORE_SECRET
from paceline.launch.supervision.generation_servers import MODULE
from paceline.schedulers.job import ClusterJob
from paceline.schedulers.kubernetes.pods import (
    grace_seconds,
    job_name,
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
