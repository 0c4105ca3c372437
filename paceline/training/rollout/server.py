"""Generation by an external server: a client on every rank; rank 0 sends the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.config.sections.rollout import ServerOptions
from paceline.core.errors import ConfigError
from paceline.generation.remote import Server, ServerEngine
from paceline.protocols.model import RootModule
from paceline.runtime.process_group.world import World, environment
from paceline.training.input_checks.rollout_config import missing_key
from paceline.training.rollout.weight_sync import WeightSync


@dataclass
class RolloutServer:
    """Opens engines over the server.

    ``open`` is collective and returns when the server uses the weights of ``root``.
    """

    options: ServerOptions
    world: World
    stop_ids: Sequence[int]
    vocab_size: int
    folder: Path
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Ask the server for its model.

        Raises ConfigError ``rollout.server_no_key``, PacelineError ``rollout.server_*``.
        """
        server = Server(self.options.url.rstrip("/"), self.options.timeout, _key(self.options.api_key_env))
        self.engine = ServerEngine(
            server,
            self.options.model or server.model(),
            self.stop_ids,
            self.vocab_size,
            self.options.concurrency,
        )
        folder = (
            Path(self.options.weights_dir).expanduser().absolute()
            if self.options.weights_dir
            else self.folder
        )
        self.sync = WeightSync(server, folder, self.dtype, self.options.sync_timeout)

    def open(self, root: RootModule) -> ServerEngine:
        """Return the engine once the server has the weights of ``root``. Collective."""
        if self.world.rank == 0:
            self.sync.push(root.hf)
        self.world.barrier()
        return self.engine


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    if wrong := missing_key(name, environment()):
        raise ConfigError(wrong)
    return environment()[name]
