"""SkyPilot 0.14.1 in its own environment: the task that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import children
import sky


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


if __name__ == "__main__":
    children.answer(task=task)
