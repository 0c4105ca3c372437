"""Jobs for tests of schedulers, and texts that files must hold exactly."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from paceline.config.sections.launch import LaunchSection
from paceline.schedulers.job import ClusterJob, Rendering, scheduler_named

SYSTEMS = ("kubernetes", "ray", "skypilot", "dstack")
YAML = "model:\n  name_or_path: org/model\ntraining:\n  max_steps: 2\n"
#: What a full site wants of each system; ``kind`` is the test's.
SITE: dict[str, Any] = {
    "image": "registry.example/paceline:1",
    "gpu": "H100",
    "cpus_per_node": 32,
    "memory": "256G",
    "interface": "eth0",
    "save_seconds": 180,
    "env": {"NCCL_DEBUG": "INFO"},
}
KUBERNETES: dict[str, Any] = {
    "namespace": "research",
    "queue": "team-a",
    "service_account": "trainer",
    "image_pull_secrets": ["registry"],
    "node_selector": {"cloud.example/gpu": "h100"},
    "tolerations": [
        {"key": "nvidia.com/gpu"},
        {"key": "team", "operator": "equal", "value": "a", "effect": "NoSchedule"},
    ],
    "rdma": {"rdma/hca": 8},
    "shm_size": "64Gi",
}
_WORDS = (
    "no 1e3 ~ null 0x1F 2026-11-30 yes {} [] & * ! # | > && $ $$ ${HOME} $HOME %s ' \" \\ ` = , : / @ % - a b"
)
_PIECES = (
    *_WORDS.split(" "),
    *(
        "- a",
        "a: b",
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "$(touch pwned)",
        "${{ secrets.x }}",
        "{{ x }}",
        ";touch pwned;",
    ),
    *("ü", "数据", "😀", "\u2028", "\x85", "\ufeff", "--x", "$(NAME", "$(A)", "\x07", "}}", "EOF\n"),
)


def texts(count: int, seed: int = 0) -> list[str]:
    """Return texts that a careless writer breaks: single pieces first, then mixtures."""
    draw = random.Random(seed)
    mixed = ["".join(draw.choices(_PIECES, k=draw.randint(2, 6))) for _ in range(count)]
    return [*_PIECES, *mixed][:count]


def job_in(folder: Path, **changed: Any) -> ClusterJob:
    """Return a job of four nodes whose config lies in ``folder``; ``site`` are keys of ``launch:``."""
    site = {**SITE, **changed.pop("site", {})}
    config = folder / "my.yaml"
    config.write_text(YAML, encoding="utf-8")
    given: dict[str, Any] = {
        "name": "my-run",
        "program": ("paceline",),
        "config": config,
        "overrides": ("training.max_steps=4",),
        "run": "/work/outputs/my-run",
        "out": folder / "job",
        "folder": Path("/work"),
        "nodes": 4,
        "gpus_per_node": 8,
        "nproc": 8,
        "port": 29500,
        "env": dict(site["env"]),
        "checkpoint_url": "s3://bucket/my-run",
        "time_limit": 43200,
        **changed,
    }
    return ClusterJob(site=LaunchSection.model_validate(site), **given)


def rendered(system: str, job: ClusterJob) -> Rendering:
    """Return what a scheduler writes."""
    return scheduler_named(system)(job)


def as_kubelet(text: str) -> str:
    """Return a word of a command as the kubelet hands it on: ``$$`` is a dollar, ``$(NAME)`` a variable."""
    return re.sub(r"\$\$|\$\(([^)]*)\)", lambda m: "$" if m[0] == "$$" else f"<{m[1]}>", text)


def as_dstack(text: str) -> str:
    """Return a variable's value as dstack hands it on: ``$$`` is a dollar, ``${{ … }}`` a variable."""
    return re.sub(r"\$\$|\$\{\{(.*?)\}\}", lambda m: "$" if m[0] == "$$" else f"<{m[1]}>", text)
