"""The command of a pod, with the variables that its controller sets: it is one node of the run."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import Run, write_yaml

from paceline.config.load import load_config
from paceline.schedulers.check_job import JobRequest, job_of
from paceline.schedulers.kubernetes.job import kubernetes_job
from paceline.schedulers.kubernetes.pods import job_name

pytestmark = [pytest.mark.integration]
#: what Kubeflow's controllers add to the pods of the second node; a Job's controller fills in its annotation
ADDED = {
    "trainjob": {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "run-node-0-0.run",
        "PET_MASTER_PORT": "29500",
    },
    "jobset": {"PET_NODE_RANK": "1"},
    "job": {"PET_NODE_RANK": "1"},
    "pytorchjob": {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "run-master-0",
        "MASTER_PORT": "29500",
        "PYTHONUNBUFFERED": "1",
    },
}
MEETS = {
    "trainjob": "run-node-0-0.run",
    "jobset": "{name}-node-0-0.{name}",
    "job": "{name}-0.{name}",
    "pytorchjob": "{name}-master-0",
}


def container(kind: str, manifest: str) -> dict[str, Any]:
    """The trainers' container; of a PyTorchJob a worker's."""
    found: list[dict[str, Any]] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(value.get("containers", []))
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    for one in yaml.safe_load_all(manifest):
        look(one)
    return found[-1]


@pytest.mark.parametrize("kind", list(ADDED))
def test_a_pod_is_one_node_of_the_run(
    kind: str, tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    site = {"image": "an/image", "nnodes": 2, "nproc": 1, "gpus_per_node": 0, "kubernetes": {"kind": kind}}
    config = {**tiny(checkpoint_url=f"file://{tmp_path}/store", use_cpu=True), "launch": site}
    file = write_yaml(tmp_path / "run.yaml", config)
    request = JobRequest(file, (), "kubernetes", ("paceline",), tmp_path)
    job = job_of(load_config(str(file)).config, request, 0, None)
    pod = container(kind, kubernetes_job(job).files["job.yaml"])
    given = {one["name"]: one["value"] for one in pod["env"] if "value" in one}
    env = {**given, **ADDED[kind], "PACELINE_STORE_SECRET": "0123456789abcdef0123"}
    command = [_as_kubelet(word, env) for word in pod["command"]]
    place = command.index("paceline")
    # The words before are `env`, which changes the variables; the files lie here, and nothing is started
    for name in re.findall(r"-u (\w+)", " ".join(command[:place])):
        env.pop(name, None)
    env |= dict(word.split("=", 1) for word in command[:place] if "=" in word)
    words = [word.replace("/etc/paceline", str(tmp_path)) for word in command[place + 1 :]]
    words = [f"training.output_dir={tmp_path}/run" if "output_dir=" in word else word for word in words]
    done = paceline(*words, "--dry-run", env=env)
    assert done.code == 0, done.err
    assert sys.executable in done.out and "WORLD_SIZE=2 LOCAL_WORLD_SIZE=1" in done.out, done.out[-3000:]
    address = MEETS[kind].format(name=job_name(job))
    assert "RANK=1 LOCAL_RANK=0" in done.out and f"MASTER_ADDR={address} MASTER_PORT=29500" in done.out


def _as_kubelet(word: str, env: dict[str, str]) -> str:
    names = r"\$\$|\$\((\w+)\)"
    return re.sub(names, lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), word)
