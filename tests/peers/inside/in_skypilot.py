"""SkyPilot 0.14.1 in its own environment: the task that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import children
import sky
from sky.jobs.state import ManagedJobStatus
from sky.schemas.api.responses import ManagedJobRecord


def task(text: str, folder: str) -> dict[str, Any]:
    """Return what SkyPilot makes of a task file."""
    file = Path(folder) / "task.yaml"
    file.write_text(text, encoding="utf-8")
    read = sky.Task.from_yaml(str(file))
    (resources,) = read.resources
    return {
        "name": read.name,
        "num_nodes": read.num_nodes,
        "run": read.run,
        "setup": read.setup,
        "envs": {key: value for key, value in read.envs.items() if not key.startswith("SKYPILOT_")},
        "file_mounts": read.file_mounts,
        "accelerators": resources.accelerators,
        "cpus": resources.cpus,
        "memory": resources.memory,
        "image": resources.image_id,
        "recovery": resources.job_recovery,
    }


def listed(jobs: list[list[Any]], folder: str) -> list[dict[str, Any]]:
    """Return what ``sky jobs queue --output json`` prints of jobs: (number, name, status, reason)."""
    names = ("job_id", "job_name", "status", "failure_reason")
    records = [
        ManagedJobRecord(**{**dict(zip(names, job, strict=True)), "status": ManagedJobStatus(job[2])})
        for job in jobs
    ]
    return [record.model_dump(mode="json") for record in records]


def statuses(asked: str, folder: str) -> dict[str, bool]:
    """Return each status, and whether a job ends with it."""
    return {status.value: status.is_terminal() for status in ManagedJobStatus}


if __name__ == "__main__":
    children.answer(task=task, listed=listed, statuses=statuses)
