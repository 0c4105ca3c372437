"""What the command line's own flags ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """What the command line's own flags ask for; None where they say nothing."""

    nproc: int | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    algorithm: str | None = None
    resume: str | None = None
    launcher: str | None = None

    def flags(self) -> dict[str, object]:
        """The same as config keys: the command-line layer."""
        asked = {
            "launch.nproc": self.nproc,
            "launch.nnodes": self.nnodes,
            "launch.node_rank": self.node_rank,
            "launch.master_addr": self.master_addr,
            "launch.master_port": self.master_port,
            "training.algorithm": self.algorithm,
            "training.resume_from_checkpoint": self.resume,
        }
        return {key: value for key, value in asked.items() if value is not None}
