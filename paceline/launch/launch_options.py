"""The command line's launch options."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.json_types import JsonObject


@dataclass(frozen=True)
class LaunchOptions:
    """The command line's launch options; None where an option is not given."""

    nproc: int | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    algorithm: str | None = None
    resume: str | None = None
    launcher: str | None = None

    def flags(self) -> JsonObject:
        """Return the given options as config keys: the command-line layer of the config."""
        settings = {
            "launch.nproc": self.nproc,
            "launch.nnodes": self.nnodes,
            "launch.node_rank": self.node_rank,
            "launch.master_addr": self.master_addr,
            "launch.master_port": self.master_port,
            "training.algorithm": self.algorithm,
            "training.resume_from_checkpoint": self.resume,
        }
        return {key: value for key, value in settings.items() if value is not None}
