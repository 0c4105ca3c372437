"""Changes of base weights by adapters. An adapter may be merged into them, or start with a part of them, so
that they keep the remainder W - scale · B A: PiSSA (Meng et al. 2024, arXiv:2404.02948) with the largest
singular values, OLoRA (Büyükakyüz 2024, arXiv:2406.01775) with the first columns of a QR decomposition.

peft computes them, in fp32 and on the host. So the remainder equals what ``PeftModel`` computes each time
it loads this adapter, whose file holds B and A alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.units import human_seconds
from paceline.models import codes
from paceline.models.lora.expert_lora import experts_parameter, is_experts, is_transposed, merge_experts
from paceline.models.lora.names import NAME, adapted_modules
from paceline.plan.features.peft_settings import rank_of, scale_of
from paceline.plan.model.parameter_list import MAGNITUDE, of_adapter
from paceline.plan.plan import AdapterSpec

if TYPE_CHECKING:
    from peft.tuners.lora import Linear

    from paceline.protocols.model import HFModel

MERGED = "merge the adapter into its base (merge_and_unload of peft), and start from that folder"
_GIVEN = {"pissa": (NAME, "pissa"), "olora": (NAME,)}  # to the layer's method of this kind


def decompose(hf: HFModel, init: str, started: bool) -> str:
    """Initialise every adapter of ``hf`` from the weight under it, in place; return a log line.
    Layers on meta are only checked. ``started``: the adapter is a folder's.

    Raises ConfigError ``models.adapter_target`` for a layer that cannot be decomposed.
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
    """Return the remainder of ``weight`` ([out, in]) under an adapter of this rank and scale, in fp32."""
    from peft import LoraConfig
    from peft.tuners.lora import Linear

    # On meta: nn.Linear would first draw values for a weight that is replaced.
    base = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    base.weight = nn.Parameter(weight.to(torch.float32, copy=True), requires_grad=False)
    # The scale is set below, so that rsLoRA and patterns need not be repeated here.
    layer = Linear(base, NAME, LoraConfig(r=rank, lora_alpha=1), r=rank, lora_alpha=1)
    layer.scaling[NAME] = scale
    getattr(layer, f"{init}_init")(*_GIVEN[init])
    return base.weight.data


@torch.no_grad()
def measure_rows(hf: HFModel) -> None:
    """Initialise DoRA's magnitudes (Liu et al. 2024, arXiv:2402.09353): the norms of the rows of each W +
    scale · B A."""
    from peft.tuners.lora import Linear

    for layer in (m for m in hf.modules() if isinstance(m, Linear)):
        weight = layer.get_base_layer().get_parameter("weight")
        if not weight.is_meta:
            whole = weight.to(torch.float32) + layer.get_delta_weight(NAME).to(torch.float32)
            lengths = layer.lora_magnitude_vector[NAME].get_parameter("weight")
            lengths.copy_(torch.linalg.norm(whole.t() if layer.fan_in_fan_out else whole, dim=1))


def _check(name: str, layer: Linear, init: str, started: bool) -> None:
    base = layer.get_base_layer()
    layer_name, shape = f"{name} ({type(base).__name__})", base.get_parameter("weight").shape
    if layer.fan_in_fan_out and init == "olora":
        raise ConfigError(
            _cannot("peft decomposes a weight of [in, out] the wrong way round", layer_name, "pissa", started)
        )
    if (rank := layer.r[NAME]) > min(shape):
        layer_name += f" of {' x '.join(map(str, shape))}, r {rank}, init_lora_weights {init}"
        reason = "a weight has no more parts than its smaller side"
        raise ConfigError(_cannot(reason, layer_name, "true", started))


def _cannot(reason: str, layer_name: str, instead: str, started: bool) -> Diagnostic:
    where = "lora.adapter_name_or_path" if started else "lora.init_lora_weights"
    remedy = f"init_lora_weights: {instead}; or target_modules without this layer"
    return codes.MODELS_ADAPTER_TARGET(reason, where, layer_name, MERGED if started else remedy)


PIECE_BYTES = 16 * 2**20  # of a product that is added to a weight
Step = Callable[[Tensor, Mapping[str, Tensor]], None]  # what the trained tensors do to a weight, in place


def merging(hf: HFModel, spec: AdapterSpec, trained: Collection[str]) -> dict[str, list[Step]]:
    """Return name -> steps that merge the adapters into the weights of the plain model ``hf`` (which may be
    on meta). A layer with an adapter gets W + scale · B A, or W rotated, in W's dtype. A module that was
    trained in full is copied in. If the adapter was initialised from W (``init_lora_weights``), its initial
    product is first subtracted. Call the steps of a weight in order, without gradients.

    ``trained``: plain names. Raises KeyError for one that the model does not have.
    """
    # A tied weight gets its steps once, under the first of its names.
    names = {id(p): name for name, p in hf.named_parameters()}
    places = {name: names[id(p)] for name, p in hf.named_parameters(remove_duplicate=False)}
    steps: dict[str, list[Step]] = {}
    for module in sorted(adapted_modules(iter(trained))):
        if is_experts(hf, module):
            name = experts_parameter(hf, spec.target_parameters, module)
            step: Step = partial(merge_experts, is_transposed(hf, module), scale_of(spec, module), module)
        elif spec.oft_block_size:
            name, step = f"{module}.weight", partial(rotate_inputs, f"{module}.oft_R.weight")
        else:
            name = f"{module}.weight"
            if spec.init_lora_weights:
                taken = partial(
                    _keep_remainder,
                    _transposed(hf, module),
                    spec.init_lora_weights,
                    rank_of(spec, module),
                    scale_of(spec, module),
                )
                steps.setdefault(places[name], []).append(taken)
            step = partial(add_product, _transposed(hf, module), scale_of(spec, module), module)
        steps.setdefault(places[name], []).append(step)
        if spec.use_dora:
            stretched = partial(stretch_rows, _transposed(hf, module), f"{module}{MAGNITUDE}")
            steps[places[name]].append(stretched)
    for name in trained:
        if not of_adapter(name):
            steps.setdefault(places[name], []).append(partial(_copy_in, name))
    return steps


def _keep_remainder(
    transposed: bool, init: str, rank: int, scale: float, weight: Tensor, trained: Mapping[str, Tensor]
) -> None:
    """Subtract the adapter's initial product from ``weight``."""
    left = remainder(weight.t() if transposed else weight, init, rank, scale)
    weight.copy_(left.t() if transposed else left)


def add_product(
    transposed: bool, factor: float, module: str, weight: Tensor, trained: Mapping[str, Tensor]
) -> None:
    """Add the adapter's product to ``weight``, some of its outputs at a time."""
    a, b = (trained[f"{module}.lora_{letter}.weight"].to(weight) for letter in "AB")
    some = max(1, PIECE_BYTES // max(1, a.shape[1] * a.element_size()))
    for first in range(0, b.shape[0], some):
        # [some, in]
        delta = (b[first : first + some] @ a).mul_(factor)
        if transposed:
            weight[:, first : first + some].add_(delta.t())
        else:
            weight[first : first + some].add_(delta)


def stretch_rows(transposed: bool, lengths: str, weight: Tensor, trained: Mapping[str, Tensor]) -> None:
    """Give the rows of ``weight`` ([out, in], or transposed) the lengths that were trained (DoRA), in
    place."""
    rows = weight.t() if transposed else weight
    rows.mul_((trained[lengths].to(weight) / torch.linalg.norm(rows, dim=1)).view(-1, 1))


def rotate_inputs(key: str, weight: Tensor, trained: Mapping[str, Tensor]) -> None:
    """Fold OFT's rotation of the input into ``weight`` [out, in] (Qiu et al. 2023, arXiv:2306.07280).

    ``key`` names a tensor [blocks, n]: the elements above the diagonal of each block's Q.

    peft rotates a block by the first terms of (I + Q)(I - Q)⁻¹ (Qiu et al. 2025, arXiv:2506.19847).
    """
    entries = trained[key]
    blocks, size = len(entries), weight.shape[1] // len(entries)
    wide = torch.promote_types(weight.dtype, torch.float32)
    q = torch.zeros(blocks, size, size, dtype=wide, device=weight.device)
    rows, columns = torch.triu_indices(size, size, 1)
    q[:, rows, columns] = entries.to(q)
    q = q - q.mT
    square = q @ q
    # (I + Q)(I - Q)⁻¹ = (I + Q)(I + Q + Q² + …) = I + 2 (Q + Q² + Q³) + Q⁴ + …: peft ends after Q⁴, with
    # factor 1.
    turned = torch.eye(size).to(q) + 2 * (q + square + square @ q) + square @ square
    parts = weight.to(wide).view(weight.shape[0], blocks, size)
    weight.copy_(torch.einsum("orc,rkc->ork", parts, turned).reshape(weight.shape))


def _copy_in(name: str, weight: Tensor, trained: Mapping[str, Tensor]) -> None:
    weight.copy_(trained[name])


def _transposed(hf: HFModel, module: str) -> bool:
    """Return whether the layer stores its weight as [in, out] (``Conv1D``)."""
    return not isinstance(hf.get_submodule(module), nn.Linear)
