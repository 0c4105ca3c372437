"""The policy's weights in a folder, for generation servers that read it: plain names, adapters merged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn

from paceline.checkpoint.export.hf_folder import MAX_SHARD_BYTES, write_weights
from paceline.checkpoint.export.hf_tensor_names import hub_entries
from paceline.checkpoint.format.durable_files import named_errors
from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.core.security.file_permissions import open_to_strangers
from paceline.generation.remote import Server
from paceline.models.lora.base_weights import stretch
from paceline.models.lora.names import NAME, plain_name
from paceline.models.module_tensors import persistent_buffers
from paceline.training import codes

if TYPE_CHECKING:
    from peft.tuners.lora import Linear

    from paceline.protocols.model import HFModel


@dataclass(unsafe_hash=True)
class WeightFolder:
    """Writes the policy into a new folder under ``folder``.

    Servers see it under the same path: on the same machine, or on a shared file system.
    """

    folder: Path
    dtype: torch.dtype
    sent: int = field(default=0, hash=False, compare=False)

    def save(self, hf: HFModel) -> Path:
        """Write the full model ``hf``, with its adapter merged; return its folder.

        Raises ConfigError if others may write the folder, CheckpointError if it cannot be written.
        """
        self.sent += 1
        target = self._target(self.sent)
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
        return target

    def remove_former(self) -> None:
        """Remove the weights that were sent before the last ones."""
        shutil.rmtree(self._target(self.sent - 1), ignore_errors=True)

    def _target(self, number: int) -> Path:
        return self.folder / f"weights-{number:06d}"


def load_weights(server: Server, folder: Path, seconds: float) -> None:
    """Have the server compute with the weights in ``folder``. Raises PacelineError ``rollout.server_*``."""
    reload: JsonObject = {
        "method": "reload_weights",
        "kwargs": {"weights_path": str(folder)},
        "timeout": seconds,
    }
    server.request("POST", "/collective_rpc", reload, seconds)
    # cached prefixes were computed with the former weights
    server.request("POST", "/reset_prefix_cache", {}, seconds)


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
