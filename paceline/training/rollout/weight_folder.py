"""The policy's weights in a folder that generation servers read: the merged model, or the adapter alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from paceline.checkpoint.export.hf_folder import MAX_SHARD_BYTES, in_shards, write_weights
from paceline.checkpoint.export.hf_tensor_names import hub_entries
from paceline.checkpoint.format.durable_files import named_errors
from paceline.checkpoint.format.foreign_folders import ADAPTER_CONFIG
from paceline.checkpoint.format.safetensors_file import TensorEntry, in_order, write_tensors
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import JsonObject
from paceline.core.security.file_permissions import open_to_strangers
from paceline.generation.remote import Server, ServerEngine
from paceline.generation.server_pool import together
from paceline.models.lora.names import WEIGHTS
from paceline.models.role_module import RoleModule
from paceline.protocols.model import RootModule
from paceline.runtime.process_group.world import World
from paceline.training import codes
from paceline.training.rollout.weight_entries import Lockstep, Sharing, adapter_entries, model_entries

ADAPTER = "paceline"  # the adapter's name on a server


@dataclass(unsafe_hash=True)
class WeightFolder:
    """Writes the policy, or its ``adapter`` alone, into a new folder under ``folder``.

    Servers see it under the same path: on the same machine, or on a shared file system.
    """

    folder: Path
    dtype: torch.dtype
    adapter: bool = False
    sent: int = field(default=0, hash=False, compare=False)

    def entries(self, root: RootModule, sharing: Sharing) -> Lockstep:
        """Return the tensors in the order in which they are written."""
        if self.adapter:
            return Lockstep(in_order(adapter_entries(root, self.dtype, sharing.access.whole)))
        entries = hub_entries(root.hf, list(model_entries(root.hf, self.dtype, sharing.access.whole)))
        return Lockstep([entry for shard in in_shards(entries, MAX_SHARD_BYTES) for entry in in_order(shard)])

    def save(self, root: RootModule, entries: Sequence[TensorEntry]) -> tuple[Path, int]:
        """Write these tensors of ``root``; return their folder and its bytes.

        Raises ConfigError if others may write the folder, CheckpointError if it cannot be written.
        """
        # A new path each time: a server may still read the former folder.
        self.sent += 1
        target = self._target(self.sent)
        # Who may write there could have a server load other weights.
        if words := open_to_strangers(self.folder):
            raise ConfigError(codes.ROLLOUT_SERVER_WEIGHTS("training.rollout.server.weights_dir", words))
        with named_errors(target, what="the weights for the generation server cannot be written"):
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            if self.adapter:
                assert isinstance(root, RoleModule)
                assert root.adapter is not None
                (target / ADAPTER_CONFIG).write_text(json.dumps(root.adapter.peft), encoding="utf-8")
                write_tensors(target / WEIGHTS, entries, {"format": "pt"})
            else:
                config = json.dumps(root.hf.config.to_dict(), default=str)
                (target / "config.json").write_text(config, encoding="utf-8")
                write_weights(target, entries, MAX_SHARD_BYTES)
        return target, sum(file.stat().st_size for file in target.iterdir())

    def remove_former(self) -> None:
        """Remove the weights that were sent before the last ones."""
        shutil.rmtree(self._target(self.sent - 1), ignore_errors=True)

    def load(self, engine: ServerEngine, target: Path, seconds: float) -> None:
        """Have the server compute with what is in ``target``. Raises PacelineError ``rollout.server_*``."""
        if self.adapter:
            engine.load_adapter(ADAPTER, str(target), seconds)
        else:
            body: JsonObject = {
                "method": "reload_weights",
                "kwargs": {"weights_path": str(target)},
                "timeout": seconds,
            }
            engine.server.request("POST", "/collective_rpc", body, seconds)
        forget_prefixes(engine.server, seconds)

    def _target(self, number: int) -> Path:
        return self.folder / f"weights-{number:06d}"


def forget_prefixes(server: Server, seconds: float) -> None:
    """Empty the cache of prefixes, which were computed with the former weights."""
    path = "/reset_prefix_cache"
    reply = server.request("POST", path, {}, seconds)
    if reply.get("success") is False:
        raise server.wrong(path, "success: false", "let no other program ask this server")


@dataclass
class FolderSender:
    """Sends by folders: one is written for all servers that read it.

    ``seconds``: within which each of ``engines`` must have loaded; ``num_bytes``: what was written last.
    """

    engines: Sequence[ServerEngine]
    seconds: Sequence[float]
    world: World
    sharing: Sharing
    folders: Sequence[WeightFolder]
    num_bytes: int = 0

    def send(self, root: RootModule, places: Sequence[int], version: str) -> dict[int, PacelineError]:
        """Have the engines at ``places`` compute with the weights; return on rank 0 which failed.
        Collective.
        """
        failed: dict[int, PacelineError] = {}
        self.num_bytes = 0
        # Written once, however many servers read it.
        for folder in dict.fromkeys(self.folders[place] for place in places):
            readers = [place for place in places if self.folders[place] == folder]
            entries = folder.entries(root, self.sharing)
            if self.world.rank == 0:
                failed |= self._load(folder, root, entries, (readers, version))
            if self.sharing.collective:
                entries.rest()
        return failed

    def _load(
        self, folder: WeightFolder, root: RootModule, entries: Lockstep, to: tuple[Sequence[int], str]
    ) -> dict[int, PacelineError]:
        readers, version = to
        try:
            target, size = folder.save(root, entries.entries)
        except PacelineError as error:
            return dict.fromkeys(readers, error)
        self.num_bytes += size

        def load(place: int) -> None:
            folder.load(self.engines[place], target, self.seconds[place])
            self.engines[place].stamp(version)

        failed = together(load, readers)
        folder.remove_former()
        return failed
