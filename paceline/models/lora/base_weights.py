"""Adapters that begin with a part of the base weights, which keep the remainder W - scale · B A: PiSSA
(Meng et al. 2024, arXiv:2404.02948) with the largest singular values, OLoRA (Büyükakyüz 2024,
arXiv:2406.01775) with the first columns of a QR decomposition.

peft computes them, in fp32 and on the host, so that the remainder is the one that ``PeftModel`` computes each
time it loads such an adapter: a file of an adapter holds B and A alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.units import human_seconds
from paceline.models import codes
from paceline.models.lora.expert_lora import NAME

if TYPE_CHECKING:
    from peft.tuners.lora import Linear

    from paceline.protocols.model import HFModel

MERGED = "merge the adapter into its base (merge_and_unload of peft), and start from that folder"
_GIVEN = {"pissa": (NAME, "pissa"), "olora": (NAME,)}  # to the layer's method of this kind


def decompose(hf: HFModel, init: str, started: bool) -> str:
    """Give every adapter of ``hf`` its part of the weight under it, in place; return a line for the log.
    Layers on meta are only checked. ``started``: the adapter is a folder's.

    Raises ConfigError ``models.adapter_target`` for a layer that cannot be decomposed so.
    """
    from peft.tuners.lora import Linear

    layers = {name: module for name, module in hf.named_modules() if isinstance(module, Linear)}
    for name, layer in layers.items():
        _check(name, layer, init, started)
    start = time.monotonic()
    for layer in layers.values():
        weight = layer.get_base_layer().get_parameter("weight")
        if not weight.is_meta:
            weight.data = weight.data.to(torch.float32, copy=True)  # it may be mapped from a file
            with torch.no_grad():
                getattr(layer, f"{init}_init")(*_GIVEN[init])
            weight.data = weight.data.contiguous()
    took = human_seconds(time.monotonic() - start)
    return f"their first values are taken out of the base weights ({init}), in {took}"


@torch.no_grad()
def remainder(weight: Tensor, init: str, rank: int, scale: float) -> Tensor:
    """Return what is left of ``weight`` ([out, in]) under an adapter of this rank and scale, in fp32."""
    from peft import LoraConfig
    from peft.tuners.lora import Linear

    base = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    base.weight = nn.Parameter(weight.to(torch.float32, copy=True), requires_grad=False)
    layer = Linear(base, NAME, LoraConfig(r=rank, lora_alpha=1), r=rank, lora_alpha=1)
    layer.scaling[NAME] = scale
    getattr(layer, f"{init}_init")(*_GIVEN[init])
    return base.weight.data


def _check(name: str, layer: Linear, init: str, started: bool) -> None:
    base = layer.get_base_layer()
    found, shape = f"{name} ({type(base).__name__})", base.get_parameter("weight").shape
    if layer.fan_in_fan_out and init == "olora":
        raise ConfigError(
            _cannot("peft decomposes a weight of [in, out] the wrong way round", found, "pissa", started)
        )
    if (rank := layer.r[NAME]) > min(shape):
        found += f" of {' x '.join(map(str, shape))}, r {rank}, init_lora_weights {init}"
        what = "a weight has no more parts than its smaller side"
        raise ConfigError(_cannot(what, found, "true", started))


def _cannot(what: str, found: str, instead: str, started: bool) -> Diagnostic:
    where = "lora.adapter_name_or_path" if started else "lora.init_lora_weights"
    hint = f"init_lora_weights: {instead}; or target_modules without this layer"
    return codes.MODELS_ADAPTER_TARGET(what, where, found, MERGED if started else hint)
