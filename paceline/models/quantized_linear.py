"""Linear layers in fewer bits: frozen ones in 4 through bitsandbytes (QLoRA: Dettmers et al. 2023,
arXiv:2305.14314), products of trained ones in 8-bit floating point through torchao.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.core.errors import ConfigError
from paceline.core.units import human_bytes
from paceline.models import codes
from paceline.models.loading.materialize import Place, Read, block_of, own_part, quantization_of
from paceline.models.lora.targets import read_by_parent
from paceline.plan.plan import Quantization

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel, RootModule, Slices


@torch.no_grad()
def quantise(
    hf: HFModel,
    spec: Quantization,
    compute: torch.dtype,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    slices: Slices | None = None,
) -> str:
    """Replace every frozen ``nn.Linear`` of the trunk by bitsandbytes' 4-bit layer on ``device``, in place;
    return a line for the log. Holds one whole weight at a time, in ``dtype``.

    ``spec`` is ``Plan.adapter.quantization``; ``compute`` is the dtype that weights are dequantized to
    for a product; ``slices`` has the weights that are on meta. The head, embeddings, norms and everything
    trained stay as they are. Call it after the adapters are injected and after the last dtype cast of the
    model: a cast would convert the packed bytes as if they were numbers. Raises ConfigError
    ``models.nothing_to_quantise``.
    """
    check_quantisable(hf)
    before = after = 0
    names = {id(parameter): name for name, parameter in hf.named_parameters()}

    def value(parameter: nn.Parameter) -> torch.Tensor:
        if not parameter.is_meta:
            return parameter.detach()
        assert slices is not None
        return slices.read(names[id(parameter)], (0,) * parameter.ndim, parameter.shape)

    # listed first: the modules are replaced on the way
    for parent, name in [(parent, name) for parent, name, _ in frozen_linears(hf)]:
        linear = getattr(parent, name)
        weight = value(linear.weight).to(device=device, dtype=dtype)
        bias = None if linear.bias is None else value(linear.bias).to(device, compute)
        layer, packed = _packed(linear, weight, bias, spec, compute)
        before, after = before + weight.nbytes, after + packed
        setattr(parent, name, layer)
    return f"linear layers in 4 bits ({spec.type}): {human_bytes(before)} packed into {human_bytes(after)}"


def _packed(
    linear: nn.Linear,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    spec: Quantization,
    compute: torch.dtype,
) -> tuple[nn.Module, int]:
    """Return the 4-bit layer in place of ``linear`` with these values, on their device, and the bytes of its
    weight.
    """
    from bitsandbytes.nn import Params4bit

    # A 4-bit layer of the same shape, without storage, then its weight (packed when moved to the device).
    layer = _layer(linear, spec, compute)
    layer.weight = Params4bit(
        weight,
        requires_grad=False,
        compress_statistics=spec.double_quant,
        quant_type=spec.type,
        quant_storage=getattr(torch, spec.storage),
        module=layer,
    )
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    layer = layer.to(weight.device)  # packs the weight
    return layer, layer.weight.nbytes + sum(t.nbytes for t in scales_of(layer))


def _layer(linear: nn.Linear, spec: Quantization, compute: torch.dtype) -> Any:
    """Return a 4-bit layer in place of ``linear``, without storage and bias."""
    from bitsandbytes.nn import Linear4bit

    layer: Any = Linear4bit(  # type: ignore[no-untyped-call]
        linear.in_features,
        linear.out_features,
        bias=False,
        compute_dtype=compute,
        compress_statistics=spec.double_quant,
        quant_type=spec.type,
        quant_storage=getattr(torch, spec.storage),
        device="meta",
    )
    # In evaluation bitsandbytes re-packs the weight for an avx512bf16 kernel that has no backward: every
    # gradient after the first evaluation would be None, without an error, and train() does not undo it.
    layer.support_avx512bf16_for_cpu = False
    layer.low_precision_ready = True  # takes and gives any activation dtype
    return layer.train(linear.training)


def empty_layers(hf: HFModel, spec: Quantization, compute: torch.dtype) -> str:
    """Replace every frozen ``nn.Linear`` of the trunk by an empty 4-bit layer on meta, in place; ``packing``
    gives it values. Return a line for the log. Raises ConfigError ``models.nothing_to_quantise``.
    """
    check_quantisable(hf)
    storage = getattr(torch, spec.storage)
    for parent, name in [(parent, name) for parent, name, _ in frozen_linears(hf)]:
        linear = getattr(parent, name)
        layer = _layer(linear, spec, compute)
        # Two 4-bit codes a byte, in words of the storage dtype, one a row (bitsandbytes' shape).
        rows = (linear.weight.numel() + 1) // (2 * storage.itemsize)
        layer.weight = nn.Parameter(torch.empty(rows, 1, dtype=storage, device="meta"), requires_grad=False)
        if linear.bias is not None:
            bias = torch.empty_like(linear.bias, dtype=compute, device="meta")
            layer.bias = nn.Parameter(bias, requires_grad=False)
        setattr(parent, name, layer)
    return f"linear layers in 4 bits ({spec.type}), each packed as it is read; every rank keeps its shard"


def packing(root: RootModule, dtype: torch.dtype) -> Place:
    """Return the ``place`` function of ``materialize.fill`` for ``root``. It reads the weight of an empty
    4-bit layer whole in ``dtype`` and packs it on the device. This rank keeps its shard of the packed bytes,
    and all scales. Other tensors are placed as usual.
    """
    spec = quantization_of(root)
    if spec is None:
        return own_part
    from bitsandbytes.nn import Linear4bit

    layers: dict[int, Any] = {id(m.weight): m for m in root.modules() if isinstance(m, Linear4bit)}

    def place(target: torch.Tensor, read: Read, device: torch.device) -> torch.Tensor:
        layer = layers.get(id(target))
        if layer is None:
            return own_part(target, read, device)
        weight = read((0, 0), (layer.out_features, layer.in_features)).to(device=device, dtype=dtype)
        packed: Any = _packed(layer, weight, None, spec, layer.compute_dtype)[0]
        # Scales stay whole on every rank: a few per cent of the packed bytes.
        layer.quant_state = packed.quant_state
        return own_part(target, partial(block_of, packed.weight.data), device)

    return place


def check_quantisable(hf: HFModel) -> None:
    """Raise ConfigError ``models.nothing_to_quantise`` for a model without a frozen linear layer in its
    trunk.
    """
    if next(frozen_linears(hf), None) is None:
        raise ConfigError(
            codes.MODELS_NOTHING_TO_QUANTISE("lora.quantization_bit", str(hf.config.model_type))
        )


def packed_weights(hf: HFModel) -> list[str]:
    """Return the names of the linear weights of a model without adapters that ``quantise`` would pack."""
    linears = {id(linear.weight) for _, _, linear in frozen_linears(hf, frozen=False)}
    return [name for name, parameter in hf.named_parameters() if id(parameter) in linears]


def rounded(weight: torch.Tensor, spec: Quantization) -> torch.Tensor:
    """Return a weight quantized and dequantized: the values that ``quantise`` gives it."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed, state = quantize_4bit(
        weight.contiguous(), compress_statistics=spec.double_quant, quant_type=spec.type
    )
    return dequantize_4bit(packed, state)


def frozen_linears(hf: HFModel, frozen: bool = True) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield (parent, attribute, layer) of the trunk's plain linear layers, except those whose weight their
    parent reads. With ``frozen`` it yields only layers that are not trained.
    """
    # The head stays: its product decides the loss, and losses read its weight directly.
    head = hf.get_output_embeddings() or getattr(hf, "score", None)
    for parent in hf.modules():
        read = read_by_parent(parent)
        for name, child in parent.named_children():
            if type(child) is not nn.Linear or child is head or name in read:
                continue
            if not (frozen and child.weight.requires_grad):
                yield parent, name, child


def scales_of(root: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the quantization scales of ``root`` and its modules: one per block, with double quantization also
    the scales of the scales.
    """
    for module in root.modules():
        state = getattr(module, "quant_state", None)
        if state is not None:
            yield state.absmax
            if state.nested:
                yield state.state2.absmax


_MULTIPLE = 16  # of both sides of a weight: what the cards' products need
_ROUTERS = ("gate", "router")  # a mixture's choice of experts is not rounded


def convert_to_fp8(trunk: nn.Module, *, emulate: bool = False) -> int:
    """Convert the linear layers of ``trunk`` that have sides of multiples of 16, and return how many.

    Input, weight and gradient are each scaled by their largest value and rounded to 8 bits for the three
    products of a layer (Micikevicius et al. 2022, arXiv:2209.05433): e4m3 forward, e5m2 for gradients.
    Parameters stay the same objects, under the same names. ``emulate``: compute the same numbers on any
    device.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    converted: list[str] = []

    def chosen(module: nn.Module, name: str) -> bool:
        if type(module) is not nn.Linear or name.rpartition(".")[2] in _ROUTERS:
            return False
        # Others stay in 16 bits: fp8 matrix units take multiples of 16 only.
        fits = module.in_features % _MULTIPLE == 0 == module.out_features % _MULTIPLE
        converted.extend([name] if fits else [])
        return fits

    # the tokens of a batch are the inner side of the weight's gradient: they are padded
    config = Float8LinearConfig(emulate=emulate, pad_inner_dim=True)
    convert_to_float8_training(trunk, module_filter_fn=chosen, config=config)
    for name in converted:
        # reads the master itself, and takes and gives activations of any dtype
        trunk.get_submodule(name).low_precision_ready = True  # type: ignore[assignment]
    return len(converted)
