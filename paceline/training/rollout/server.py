"""Generation by an external server: a client on every rank; rank 0 sends the weights as safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn

from paceline.checkpoint.export.hf_folder import MAX_SHARD_BYTES, write_weights
from paceline.checkpoint.export.hf_tensor_names import hub_entries
from paceline.checkpoint.format.durable_files import named_errors
from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.config.sections.rollout import ServerOptions
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.core.security.file_permissions import open_to_strangers
from paceline.generation.remote import Server, ServerEngine
from paceline.models.lora.base_weights import stretch
from paceline.models.lora.names import NAME, plain_name
from paceline.models.module_tensors import persistent_buffers
from paceline.protocols.model import RootModule
from paceline.runtime.process_group.world import World, environment
from paceline.training import codes
from paceline.training.preflight.named_models import missing_key


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
        variables, key = environment(), self.options.api_key_env
        if missing := missing_key(key, variables):
            raise ConfigError(missing)
        server = Server(self.options.url.rstrip("/"), self.options.timeout, variables[key] if key else None)
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


if TYPE_CHECKING:
    from peft.tuners.lora import Linear

    from paceline.protocols.model import HFModel


@dataclass
class WeightSync:
    """Writes the policy into a new folder under ``folder``, has ``server`` load it, and removes the previous
    one.

    The server must see the folder under the same path: the same machine, or a shared file system. Raises
    PacelineError ``rollout.server_*`` if it does not load within ``seconds``; CheckpointError if the folder
    cannot be written.
    """

    server: Server
    folder: Path
    dtype: torch.dtype
    seconds: float
    sent: int = 0

    def push(self, hf: HFModel) -> None:
        """Send the full model ``hf``, with its adapter merged.

        Raises ConfigError if others may write the folder.
        """
        self.sent += 1
        target = self.folder / f"weights-{self.sent:06d}"
        if words := open_to_strangers(self.folder):
            raise ConfigError(codes.ROLLOUT_SERVER_WEIGHTS("training.rollout.server.weights_dir", words))
        with named_errors(target, what="the weights for the generation server cannot be written"):
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            entries = hub_entries(hf, list(whole(hf, self.dtype)))
            (target / "config.json").write_text(
                json.dumps(hf.config.to_dict(), default=str), encoding="utf-8"
            )
            write_weights(target, entries, MAX_SHARD_BYTES)
        reload: JsonObject = {
            "method": "reload_weights",
            "kwargs": {"weights_path": str(target)},
            "timeout": self.seconds,
        }
        self.server.request("POST", "/collective_rpc", reload, self.seconds)
        # cached prefixes were computed with the former weights
        self.server.request("POST", "/reset_prefix_cache", {}, self.seconds)
        shutil.rmtree(self.folder / f"weights-{self.sent - 1:06d}", ignore_errors=True)


def whole(hf: HFModel, dtype: torch.dtype) -> Iterator[TensorEntry]:
    """Yield parameters and persistent buffers of the plain model that ``hf`` computes, with Transformers'
    names.

    A layer with an adapter has W + scale · B A (peft's own sum).
    """
    layers = {name: module for name, module in hf.named_modules() if _is_adapted(module)}
    experts = {
        id(m.get_base_layer().get_parameter(vars(m)["parameter_name"])): m
        for m in layers.values()
        if "parameter_name" in vars(m)  # of fused experts
    }
    for name, parameter in hf.named_parameters():
        if ".lora_" in name:
            continue
        adapted = layers.get(name.removesuffix(".base_layer.weight")) or experts.get(id(parameter))
        yield TensorEntry(plain_name(name), dtype, tuple(parameter.shape), _given(parameter, adapted, dtype))
    for name, buffer in persistent_buffers(hf):
        kind = dtype if buffer.is_floating_point() else buffer.dtype
        yield TensorEntry(plain_name(name), kind, tuple(buffer.shape), _given(buffer, None, kind))


def _is_adapted(module: nn.Module) -> TypeGuard[Linear]:
    return NAME in getattr(module, "lora_A", ())


def _given(parameter: Tensor, adapted: Linear | None, dtype: torch.dtype) -> Callable[[], Tensor]:
    @torch.no_grad()
    def load() -> Tensor:
        tensor = parameter.detach()
        if adapted is None:
            return tensor.to(dtype)
        tensor = tensor + adapted.get_delta_weight(NAME).to(tensor)
        if NAME in adapted.lora_magnitude_vector:
            lengths = adapted.lora_magnitude_vector[NAME].get_parameter("weight")
            stretch(tensor, lengths, bool(adapted.fan_in_fan_out))
        return tensor.to(dtype)

    return load
