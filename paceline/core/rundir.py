"""The run directory: a folder that describes itself. Nobody else joins paths inside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunDir:
    """Names of everything a run leaves behind. Pure: constructing it touches nothing on disk."""

    root: Path

    @staticmethod
    def at(path: str | Path) -> RunDir:
        """The run directory at ``path`` (made absolute, not created)."""
        return RunDir(Path(path).expanduser().absolute())

    @property
    def config_yaml(self) -> Path:
        """A copy of the user's YAML as it was given."""
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
        """Held by the run that writes here."""
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

    def heartbeat(self, rank: int) -> Path:
        return self.events_dir / f"rank-{rank:05d}.heartbeat"

    def exits(self, node_rank: int = 0) -> Path:
        """How the ranks of a node have ended, written by the launcher there."""
        return self.events_dir / ("exits.json" if node_rank == 0 else f"exits-node-{node_rank}.json")

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    @property
    def latest(self) -> Path:
        """A hint that names the newest published checkpoint; resume scans and verifies."""
        return self.checkpoints / "latest"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def wandb(self) -> Path:
        return self.root / "wandb"

    @property
    def rollout_weights(self) -> Path:
        """The policy's weights on their way to a server that writes answers."""
        return self.root / "rollout-weights"

    @property
    def plot_png(self) -> Path:
        return self.root / "plot.png"

    @property
    def answers_json(self) -> Path:
        """Held-out questions with the model's answers before and after."""
        return self.root / "answers.json"

    def exists(self) -> bool:
        """Whether a run has written here before."""
        return self.plan_json.exists() or self.events_dir.exists()
