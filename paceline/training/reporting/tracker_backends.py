"""TensorBoard, wandb, MLflow, SwanLab and Trackio, each as a few calls of its own package.

A backend imports its package when it is created, in its thread; ``open_trackers`` has already imported it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from paceline.core.json_types import Json
from paceline.core.rundir import RunDir

Send = Callable[..., None]
_PARAMS_A_CALL = 100  # that MLflow takes at once


class TensorBoard:
    """torch's SummaryWriter into ``RUN/tensorboard``; points after ``start_step`` from an earlier attempt are
    purged.
    """

    imports = "torch.utils.tensorboard"

    def __init__(self, tracked: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        start = tracked.start_step
        writer = SummaryWriter(str(tracked.run.tensorboard), purge_step=start + 1 if start else None)
        self._add: Send = writer.add_scalar
        self._close: Send = writer.close

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._add(name, value, step)

    def close(self) -> None:
        self._close()


class _Stepwise:
    """A tracker that takes all values of a step in one call of ``_log``."""

    _log: Send
    _finish: Send

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._log(dict(values), step=step)

    def close(self) -> None:
        self._finish()


class Wandb(_Stepwise):
    """Weights & Biases, into ``RUN/wandb``; offline without a key (``wandb sync`` uploads later)."""

    imports = "wandb"

    def __init__(self, tracked: TrackedRun) -> None:
        import wandb

        tracked.run.wandb.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=tracked.project,
            name=tracked.name,
            dir=str(tracked.run.wandb),
            config=dict(tracked.config),
            mode=None if tracked.online else "offline",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._log = run.log
        self._finish = run.finish


class MLflow:
    """MLflow, to the server or database of MLFLOW_TRACKING_URI; without it a database in ``RUN/mlflow``.

    Uses MLflow's client, since a run of ``mlflow.start_run`` belongs to one thread.
    """

    imports = "mlflow"

    def __init__(self, tracked: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # else a line for each table it makes

        address = tracked.address
        if not address:
            tracked.run.mlflow.mkdir(parents=True, exist_ok=True)
            address = f"sqlite:///{tracked.run.mlflow / 'mlflow.db'}"
        client = MlflowClient(tracking_uri=address)
        existing = client.get_experiment_by_name(tracked.project)
        experiment = (
            existing.experiment_id if existing is not None else client.create_experiment(tracked.project)
        )
        run_id = client.create_run(experiment, run_name=tracked.name).info.run_id
        self._metric: Callable[[str, float, int, int], object] = Metric
        self._log_batch: Send = partial(client.log_batch, run_id)
        self._terminate: Send = partial(client.set_terminated, run_id)
        params = [Param(_allowed(key), value) for key, value in flat(tracked.config).items()]
        for start in range(0, len(params), _PARAMS_A_CALL):
            self._log_batch(params=params[start : start + _PARAMS_A_CALL])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_allowed(name), value, now, step) for name, value in values.items()]
        self._log_batch(metrics=metrics)

    def close(self) -> None:
        self._terminate()


class SwanLab(_Stepwise):
    """SwanLab, into ``RUN/swanlab``; offline without a key (``swanlab sync`` uploads later)."""

    imports = "swanlab"

    def __init__(self, tracked: TrackedRun) -> None:
        import swanlab

        tracked.run.swanlab.mkdir(parents=True, exist_ok=True)
        swanlab.init(
            project=tracked.project,
            experiment_name=tracked.name,
            logdir=str(tracked.run.swanlab),
            config=dict(tracked.config),
            mode=None if tracked.online else "offline",
        )
        self._log = swanlab.log
        self._finish = swanlab.finish


class Trackio(_Stepwise):
    """Trackio, into its folder of projects (TRACKIO_DIR) or the Space of TRACKIO_SPACE_ID."""

    imports = "trackio"

    def __init__(self, tracked: TrackedRun) -> None:
        import trackio

        run = trackio.init(
            project=tracked.project, name=tracked.name, config=dict(tracked.config), embed=False
        )
        self._log = run.log
        self._finish = run.finish


ADAPTERS: Mapping[str, type[TensorBoard | Wandb | MLflow | SwanLab | Trackio]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
    "swanlab": SwanLab,
    "trackio": Trackio,
}


def _allowed(name: str) -> str:
    """Return ``name`` with only characters that MLflow allows."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]


def flat(config: Mapping[str, Json], prefix: str = "") -> dict[str, str]:
    """Return the values of a config that are set, by dotted key, as texts of at most 500 characters."""
    values: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            values |= flat(value, f"{name}.")
        elif value is not None:
            values[name] = str(value)[:500]
    return values


class Tracker(Protocol):
    """Receives numbers by name."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class TrackedRun:
    """The arguments of a tracker; texts are redacted."""

    run: RunDir
    name: str
    config: Mapping[str, Json]
    project: str = ""
    start_step: int = 0
    online: bool = True  # False: it has no key of its server here, and records for later
    address: str = ""  # of MLflow's server, or its database
