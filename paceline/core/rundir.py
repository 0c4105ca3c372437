"""Paths inside a run directory. No other module joins them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunDir:
    """Paths of everything a run writes. Constructing it does not touch the disk."""

    root: Path

    @staticmethod
    def at(path: str | Path) -> RunDir:
        """Return the run directory at ``path``, made absolute but not created."""
        return RunDir(Path(path).expanduser().absolute())

    @property
    def config_yaml(self) -> Path:
        """An unchanged copy of the user's YAML."""
        return self.root / "config.yaml"

    @property
    def config_json(self) -> Path:
        """The effective config."""
        return self.root / "config.json"

    @property
    def plan_json(self) -> Path:
        return self.root / "plan.json"

    @property
    def result_json(self) -> Path:
        """Written once, when the run ends."""
        return self.root / "result.json"

    @property
    def lock(self) -> Path:
        """Lock file, held by the running job."""
        return self.root / ".lock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def training_log(self) -> Path:
        return self.logs / "training.log"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.log"

    @property
    def events_dir(self) -> Path:
        return self.root / "events"

    def events(self, rank: int) -> Path:
        """Append-only typed events of one rank, JSON lines."""
        return self.events_dir / f"rank-{rank:05d}.events.jsonl"

    def flight(self, rank: int) -> Path:
        """The last collectives of a rank that ended in a time-out, as torch's flight recorder has them."""
        return self.events_dir / f"flight_{rank}.json"

    def heartbeat(self, rank: int) -> Path:
        return self.events_dir / f"rank-{rank:05d}.heartbeat"

    def exits(self, node_rank: int = 0) -> Path:
        """How a node's ranks exited; written by that node's launcher."""
        return self.events_dir / ("exits.json" if node_rank == 0 else f"exits-node-{node_rank}.json")

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    @property
    def latest(self) -> Path:
        """Names the newest published checkpoint; only a hint, as resume scans the folder and verifies."""
        return self.checkpoints / "latest"

    def fetched(self, name: str) -> Path:
        """Checkpoints that were brought down from another run's URL, ``name``, to resume from."""
        return self.root / "fetched" / name

    @property
    def run_id(self) -> Path:
        """A name of this run that no other has, by which it claims a URL."""
        return self.root / "run-id"

    @property
    def disks(self) -> Path:
        """How many folders this path was on the nodes of the last start that had several; of each disk."""
        return self.root / ".disks"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def wandb(self) -> Path:
        return self.root / "wandb"

    @property
    def mlflow(self) -> Path:
        return self.root / "mlflow"

    @property
    def swanlab(self) -> Path:
        return self.root / "swanlab"

    @property
    def profile(self) -> Path:
        """What recorded steps spent their time on."""
        return self.root / "profile"

    @property
    def rollout_weights(self) -> Path:
        """The policy's weights, written for a generation server to load."""
        return self.root / "rollout-weights"

    @property
    def plot_png(self) -> Path:
        return self.root / "plot.png"

    @property
    def answers_json(self) -> Path:
        """Held-out questions with the model's answers before and after training."""
        return self.root / "answers.json"

    def exists(self) -> bool:
        """Whether a run has written here before."""
        return self.plan_json.exists() or self.events_dir.exists()
