"""The policy's tensors for generation servers, one at a time: merged and by plain names, or the adapter's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
from torch import Tensor, nn

from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.models.lora.base_weights import Step, add_product, rotate_inputs, stretch_rows
from paceline.models.lora.expert_lora import merge_experts
from paceline.models.lora.names import NAME, adapted_modules, peft_key, plain_name
from paceline.models.module_tensors import persistent_buffers
from paceline.plan.model.parameter_list import MAGNITUDE, of_adapter
from paceline.protocols.model import RootModule
from paceline.strategies.model_handle import ParameterAccess, as_they_are

if TYPE_CHECKING:
    from peft.tuners.lora import Linear
    from peft.tuners.oft import Linear as Rotated

    from paceline.models.lora.expert_lora import FusedExperts
    from paceline.protocols.model import HFModel
    from paceline.strategies.model_handle import Handle
    from paceline.strategies.strategy import Strategy

Gather = Callable[[Sequence[nn.Parameter]], AbstractContextManager[Sequence[Tensor]]]


@dataclass(frozen=True)
class Sharing:
    """How the ranks hold the policy. The default: each holds all of it.

    access      how parameters are read
    collective  that, and forwards, are collectives
    computing   inside, ``root.hf`` can be called, by every rank alike
    first       whether no rank before this one reads the same rows
    """

    access: ParameterAccess = ParameterAccess()
    collective: bool = False
    computing: Callable[[], AbstractContextManager[RootModule | None]] = nullcontext
    first: bool = True

    @staticmethod
    def of(strategy: Strategy, handle: Handle) -> Sharing:
        """Return how ``strategy`` holds it."""
        first = not strategy.plan.mesh.coordinates(strategy.world.rank).tp
        computing = partial(strategy.generating, handle)
        return Sharing(strategy.access, strategy.collective_forward, computing, first)


class Lockstep:
    """Tensors that every rank loads in one order, as their loads are collectives.

    Rank 0 takes ``entries``, the others call ``rest``; so does rank 0 where it could not take them all.
    """

    def __init__(self, entries: Sequence[TensorEntry]) -> None:
        self._left = deque(entries)
        self.entries = [replace(entry, load=partial(self._load, entry)) for entry in entries]

    def rest(self) -> None:
        """Load what was not loaded."""
        while self._left:
            self._left.popleft().load()

    def _load(self, entry: TensorEntry) -> Tensor:
        assert self._left.popleft() is entry, f"{entry.name} is loaded out of order"
        return entry.load()


def adapter_entries(root: RootModule, dtype: torch.dtype, whole: Gather = as_they_are) -> list[TensorEntry]:
    """Return the tensors of the adapter alone, with peft's keys."""
    named = list(root.plain_named_parameters())
    adapted = adapted_modules(name for name, _ in named)
    return [
        TensorEntry(peft_key(name, adapted), dtype, shape_of(p), _loading([p], whole, dtype))
        for name, p in named
    ]


def model_entries(hf: HFModel, dtype: torch.dtype, whole: Gather = as_they_are) -> Iterator[TensorEntry]:
    """Yield parameters and persistent buffers of the plain model that ``hf`` computes, with Transformers'
    names.

    A layer with an adapter has W + scale · B A, or W rotated.
    """
    layers = {name: module for name, module in hf.named_modules() if _is_adapted(module)}
    experts = {
        # By identity: several wrappers may stand around one module.
        id(m.get_base_layer().get_parameter(vars(m)["parameter_name"])): m
        for m in layers.values()
        if "parameter_name" in vars(m)  # of fused experts
    }
    for name, parameter in hf.named_parameters():
        if of_adapter(name):
            continue
        adapted = layers.get(name.removesuffix(".base_layer.weight")) or experts.get(id(parameter))
        parts, steps = ([], []) if adapted is None else _merging(adapted)
        load = _loading([parameter, *parts], whole, dtype, steps)
        yield TensorEntry(plain_name(name), dtype, shape_of(parameter), load)
    for name, buffer in persistent_buffers(hf):
        kind = dtype if buffer.is_floating_point() else buffer.dtype
        yield TensorEntry(plain_name(name), kind, tuple(buffer.shape), partial(buffer.detach().to, kind))


def shape_of(parameter: nn.Parameter) -> tuple[int, ...]:
    """Return the shape of the whole parameter; a partition of ZeRO-3's has none."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _is_adapted(module: nn.Module) -> TypeGuard[Linear | Rotated]:
    return any(NAME in getattr(module, name, ()) for name in ("lora_A", "oft_R"))


def _merging(layer: Linear | Rotated) -> tuple[list[nn.Parameter], list[Step]]:
    """Return the adapter's parameters (A, B, and DoRA's lengths; or OFT's rotations) and what they do to the
    layer's weight.
    """
    from peft.tuners.oft import Linear as Rotated

    if isinstance(layer, Rotated):
        return [layer.oft_R[NAME].get_parameter("weight")], [partial(rotate_inputs, _KEYS[0])]
    parts = [layer.lora_A[NAME].get_parameter("weight"), layer.lora_B[NAME].get_parameter("weight")]
    scale = float(layer.scaling[NAME])
    if "parameter_name" in vars(layer):
        experts = cast("FusedExperts", layer.get_base_layer())
        return parts, [partial(merge_experts, experts.is_transposed, scale, "")]
    transposed = bool(layer.fan_in_fan_out)
    steps: list[Step] = [partial(add_product, transposed, scale, "")]
    if NAME in layer.lora_magnitude_vector:
        parts.append(layer.lora_magnitude_vector[NAME].get_parameter("weight"))
        steps.append(partial(stretch_rows, transposed, MAGNITUDE))
    return parts, steps


_KEYS = (".lora_A.weight", ".lora_B.weight", MAGNITUDE)  # of the parts, to a step


def _loading(
    parameters: Sequence[nn.Parameter], whole: Gather, dtype: torch.dtype, steps: Sequence[Step] = ()
) -> Callable[[], Tensor]:
    @torch.no_grad()
    def load() -> Tensor:
        with whole(parameters) as (tensor, *parts):
            if not steps:
                # Without an adapter; merging needs a copy, as the weight itself must not change.
                return tensor.to(dtype)
            merged = tensor.clone()
            for step in steps:
                step(merged, dict(zip(_KEYS, parts, strict=False)))
            return merged.to(dtype)

    return load
