"""A job as every scheduler sees it: what runs on each node, and what the site wants around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paceline.config.sections.launch import LaunchSection


@dataclass(frozen=True)
class ClusterJob:
    """What a scheduler is asked to run.

    - ``name``: lower-case letters, digits and dashes, at most 40 characters (a label of Kubernetes)
    - ``command``: argv of one node's launcher, without its rank and address; it resumes by itself
    - ``run``: the run's directory or URL
    - ``gpus_per_node``: accelerators asked for (0: a run on CPUs); ``nproc``: ranks of a node
    - ``time_limit``: seconds; None where neither the config nor the plan says
    - ``save_seconds``: what a save and its upload take: the signal comes this long before the end
    - ``secrets``: variable → where the scheduler finds its value; a value itself is in no file
    """

    name: str
    command: tuple[str, ...]
    config: Path
    run: str
    nodes: int
    gpus_per_node: int
    nproc: int
    port: int
    site: LaunchSection
    time_limit: int | None = None
    save_seconds: int = 120
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rendering:
    """Files by name, the commands (argv) that hand them to the scheduler, and what a reader should know."""

    files: Mapping[str, str]
    submit: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


class Scheduler(Protocol):
    """One scheduler: a pure function from a job to its files and commands."""

    def __call__(self, job: ClusterJob) -> Rendering: ...
