"""Paths inside a run directory. No other module joins them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class _PathInside:
    """A path below the root of a run directory."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, run: RunDir, owner: type[RunDir]) -> Path:
        return run.root / self._path


@dataclass(frozen=True)
class RunDir:
    """Paths of everything a run writes. Constructing it does not touch the disk."""

    root: Path

    @staticmethod
    def at(path: str | Path) -> RunDir:
        """Return the run directory at ``path``, made absolute but not created."""
        return RunDir(Path(path).expanduser().absolute())

    #: An unchanged copy of the user's YAML.
    config_yaml = _PathInside("config.yaml")
    #: The effective config.
    config_json = _PathInside("config.json")
    plan_json = _PathInside("plan.json")
    #: Written once, when the run ends.
    result_json = _PathInside("result.json")
    #: The plan's forecast beside what was measured, written when the run ends.
    measured_json = _PathInside("measured.json")
    #: What has started the run last: scheduler, job, host.
    launched_by = _PathInside("launched-by.json")
    #: A deliberate stop: the launchers that see it stop, and no scheduler starts the job again.
    stop_request = _PathInside("stop-request.json")
    #: Lock file, held by the running job.
    lock = _PathInside(".lock")
    logs = _PathInside("logs")
    training_log = _PathInside("logs/training.log")

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.log"

    def server_log(self, place: int) -> Path:
        """What a generation server prints that the run has started."""
        return self.logs / f"server-{place}.log"

    events_dir = _PathInside("events")

    def events(self, rank: int) -> Path:
        """Append-only typed events of one rank, JSON lines."""
        return self.events_dir / f"rank-{rank:05d}.events.jsonl"

    def flight(self, rank: int) -> Path:
        """The last collectives of a rank that ended in a time-out, from torch's flight recorder."""
        return self.events_dir / f"flight_{rank}.json"

    def stacks(self, rank: int) -> Path:
        """Where each thread of a rank was when the ranks waited for too long."""
        return self.events_dir / f"stacks_{rank}.txt"

    def heartbeat(self, rank: int) -> Path:
        return self.events_dir / f"rank-{rank:05d}.heartbeat"

    def exits(self, node_rank: int = 0) -> Path:
        """The file with the exits of a node's ranks, written by that node's launcher."""
        return self.events_dir / ("exits.json" if node_rank == 0 else f"exits-node-{node_rank}.json")

    checkpoints = _PathInside("checkpoints")

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    #: Names the newest published checkpoint; only a hint, as resume scans the folder and verifies.
    latest = _PathInside("checkpoints/latest")

    def fetched(self, name: str) -> Path:
        """Checkpoints downloaded from another run's URL, ``name``, to resume from."""
        return self.root / "fetched" / name

    #: A name of this run that no other has, by which it claims a URL.
    run_id = _PathInside("run-id")
    #: How many folders this path was on the nodes of the last start that had several; of each disk.
    disks = _PathInside(".disks")
    tensorboard = _PathInside("tensorboard")
    wandb = _PathInside("wandb")
    mlflow = _PathInside("mlflow")
    swanlab = _PathInside("swanlab")
    #: What recorded steps spent their time on.
    profile = _PathInside("profile")
    #: The policy's weights, written for a generation server to load.
    rollout_weights = _PathInside("rollout-weights")
    plot_png = _PathInside("plot.png")
    #: Held-out questions with the model's answers before and after training.
    answers_json = _PathInside("answers.json")

    def picture(self, name: str) -> Path:
        """A small picture of a sample (JPEG), which the page shows."""
        return self.root / "pictures" / f"{name}.jpg"

    def exists(self) -> bool:
        """Whether a run has written here before."""
        return self.plan_json.exists() or self.events_dir.exists()
