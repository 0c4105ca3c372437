"""Trackers by name: the package of each, the variables it reads, and how it works without its server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TrackerFacts:
    """Facts about a tracker, known without importing it. Variables are environment variables.

    ``key`` holds the key of its server. ``login`` is the file (netrc's form) where its login command keeps a
    key for ``host``. ``mode`` makes it work offline; ``later`` uploads offline records.
    """

    package: str
    install: str
    project: str = ""  # the variable that names the project
    key: str = ""
    mode: str = ""
    login: str = ""
    host: str = ""
    later: str = ""


TRACKERS: Mapping[str, TrackerFacts] = {
    "tensorboard": TrackerFacts("tensorboard", "pip install tensorboard"),
    "wandb": TrackerFacts(
        "wandb",
        "pip install 'paceline[wandb]'",
        project="WANDB_PROJECT",
        key="WANDB_API_KEY",
        mode="WANDB_MODE",
        login="~/.netrc",
        host="api.wandb.ai",
        later="wandb sync",
    ),
    "mlflow": TrackerFacts("mlflow", "pip install 'paceline[mlflow]'", project="MLFLOW_EXPERIMENT_NAME"),
    "swanlab": TrackerFacts(
        "swanlab",
        "pip install 'paceline[swanlab]'",
        project="SWANLAB_PROJ_NAME",
        key="SWANLAB_API_KEY",
        mode="SWANLAB_MODE",
        login="~/.swanlab/.netrc",
        later="swanlab sync",
    ),
    "trackio": TrackerFacts("trackio", "pip install 'paceline[trackio]'", project="TRACKIO_PROJECT"),
}
NONE, ALL = "none", "all"
PROJECT = "paceline"  # where neither the config nor a variable names one


def names_of(report_to: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requested trackers: none for ``none``, every known one for ``all``."""
    names = [
        tracker for name in report_to for tracker in (TRACKERS if name == ALL else (name,)) if tracker != NONE
    ]
    return tuple(dict.fromkeys(names))


def project_of(name: str, project: str | None, environ: Mapping[str, str]) -> str:
    """Return the project that a tracker's run belongs to."""
    facts = TRACKERS.get(name)
    return project or (environ.get(facts.project, "") if facts and facts.project else "") or PROJECT
