"""How a model is cut into units and sharded by FSDP2 (``torch.distributed.fsdp.fully_shard``): settings, units, prefetch order."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.models.qkv import FusedAttention
from paceline.models.swiglu import FusedSwiGLU
from paceline.plan.strategies.options import FsdpOptions
from paceline.strategies import codes

FUSED_LEAVES = (
    FusedAttention,
    FusedSwiGLU,
)  # their forwards read the weights of their children, which must be gathered then


@dataclass(frozen=True)
class Dtypes:
    """``compute`` of the gathered parameters (None: as the masters), ``reduce`` of the gradients' sums."""

    compute: torch.dtype | None = None
    reduce: torch.dtype | None = None


@dataclass
class Units:
    """The FSDP modules of one model, the root first; each is gathered and freed as one."""

    root: FSDPModule
    inner: list[FSDPModule] = field(default_factory=list)

    def all(self) -> list[FSDPModule]:
        return [self.root, *self.inner]

    def start(self) -> None:
        """What the first forward would do: the root is known as such whoever is called first, and no parameter is left on meta."""
        self.root._get_fsdp_state()._lazy_init()

    def gather(self) -> None:
        """Whole parameters everywhere, until ``free``; forwards leave them so."""
        self.start()
        for unit in self.all():
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()

    def reshard_between_layers(self) -> None:
        """Until ``free`` a forward of the trunk gathers one inner unit after the other; what belongs to the root (embedding, last norm, head) stays
        whole, for nobody calls the root."""
        self.start()
        self.root.set_reshard_after_forward(False, recurse=False)
        self.root.unshard()
        for unit in self.inner:
            unit.set_reshard_after_forward(True, recurse=False)

    def reset_prefetch_order(self) -> None:
        """After a forward without gradients, between steps or micro-batches: shards only, and its order of units is no plan for a backward."""
        for unit in self.all():
            unit.reshard()
            state = unit._get_fsdp_state()
            for group in state._fsdp_param_groups:
                group._post_forward_indices.clear()
                group.comm_ctx.post_forward_order.clear()

    def free(self, reshard: bool) -> None:
        """Shards only, as between steps."""
        for unit in self.all():
            unit.reshard()
        for unit in self.inner:
            unit.set_reshard_after_forward(reshard, recurse=False)
        # Forwards without a backward are still on FSDP2's list of what a backward gathers ahead. Ranks that made none (no prompts) would gather
        # otherwise than the others in the next backward, and wait for ever.
        for unit in self.all():
            state: Any = unit._get_fsdp_state()
            if state._fsdp_param_group is not None:
                state._fsdp_param_group._post_forward_indices.clear()
            state._comm_ctx.post_forward_order.clear()


def shard(root: nn.Module, trunk: nn.Module, mesh: DeviceMesh, how: FsdpOptions, dtypes: Dtypes) -> Units:
    """Shard ``root`` over ``mesh`` in place: the units of ``trunk`` first, the rest as the root's own unit.

    Gradients are summed over the mesh, not averaged (contract 2 divides by the global weight already).
    """
    # a unit whose output is a view (the fused MLP's, cut by size) is only added to, never written to
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if how.cpu_offload else OffloadPolicy()
    inner = [
        fully_shard(
            unit, mesh=mesh, reshard_after_forward=how.reshard_after_forward, mp_policy=_precision(dtypes, cast_inputs=True), offload_policy=offload
        )
        for unit in units_of(trunk, how)
    ]  # fmt: skip
    # the root's parameters (embedding, last norm, head) are needed first in the backward: they stay until then
    whole = fully_shard(
        root, mesh=mesh, reshard_after_forward=False, mp_policy=_precision(dtypes, cast_inputs=False), offload_policy=offload
    )  # fmt: skip
    units = Units(whole, inner)
    for unit in units.all():
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)  # else a factor of 1 becomes PREMUL_SUM, which gloo lacks
    _prefetch(units, how)
    return units


def _precision(dtypes: Dtypes, *, cast_inputs: bool) -> MixedPrecisionPolicy:
    return MixedPrecisionPolicy(param_dtype=dtypes.compute, reduce_dtype=dtypes.reduce, cast_forward_inputs=cast_inputs)


def _prefetch(units: Units, how: FsdpOptions) -> None:
    """FSDP2 gathers the next unit of the backward early by itself; naming a unit that is already there as the one to gather turns that off."""
    if how.backward_prefetch != "backward_pre":
        for unit in units.all():
            unit.set_modules_to_backward_prefetch([unit])
    if how.forward_prefetch:
        for unit, following in zip(units.all(), units.inner, strict=False):
            unit.set_modules_to_forward_prefetch([following])


def units_of(trunk: nn.Module, how: FsdpOptions) -> list[nn.Module]:
    """The modules that become units of their own, in the model's order. Raises ConfigError for a class the model does not have."""
    if how.wrap.policy == "none":
        return []
    if how.wrap.policy == "size":
        return _by_size(trunk, how.wrap.min_num_params)
    found = wrapped_classes(trunk, how.wrap.classes) if how.wrap.classes else [m for m in trunk.modules() if _is_one_of(m, layer_classes(trunk))]  # fmt: skip
    inside = {id(child) for m in found for child in m.modules() if child is not m}
    return [m for m in found if id(m) not in inside]


def wrapped_classes(trunk: nn.Module, classes: Sequence[str]) -> list[nn.Module]:
    """The modules of these classes. Raises ConfigError for a class that none has."""
    found = [m for m in trunk.modules() if _is_one_of(m, classes)]
    missing = set(classes) - {name for m in found for name in _names(m)}
    if missing:
        raise ConfigError(_no_such_class(sorted(missing), trunk))
    return found


def layer_classes(trunk: nn.Module) -> tuple[str, ...]:
    """The model's decoder layers by class name: what it declares unsplittable, as far as it occurs."""
    declared = set(getattr(trunk, "_no_split_modules", None) or ())
    return tuple(sorted({name for m in trunk.modules() for name in _names(m)} & declared))


def _names(module: nn.Module) -> set[str]:
    """The class's name and those of the classes it was made from (kernels and engines swap a module's class)."""
    return {kind.__name__ for kind in type(module).__mro__}


def _is_one_of(module: nn.Module, classes: Sequence[str]) -> bool:
    return not _names(module).isdisjoint(classes)


def _by_size(trunk: nn.Module, least: int) -> list[nn.Module]:
    """Modules with at least ``least`` parameters that no unit inside them holds already, found from the leaves up (as FSDP1's size policy)."""
    kept_whole = {
        id(m) for name in ("get_input_embeddings", "get_output_embeddings") if (m := _call(trunk, name)) is not None
    }
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> int:
        """How many parameters of ``module`` no unit holds."""
        if id(module) in kept_whole:  # the head's weight is read without calling it, and may be tied to the embedding's
            return 0
        if isinstance(module, FUSED_LEAVES):
            rest = sum(p.numel() for p in module.parameters())
        else:
            rest = sum(p.numel() for p in module.parameters(recurse=False)) + sum(
                visit(child) for child in module.children()
            )
        if module is not trunk and rest >= max(least, 1) and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            found.append(module)
            return 0
        return rest

    visit(trunk)
    order = {id(m): i for i, m in enumerate(trunk.modules())}
    return sorted(found, key=lambda m: (-_depth_inside(m, found), order[id(m)]))


def _depth_inside(module: nn.Module, found: Sequence[nn.Module]) -> int:
    """How many of ``found`` contain ``module``: inner units must be sharded before outer ones."""
    return sum(any(child is module for child in other.modules()) for other in found) - 1


def _call(module: nn.Module, name: str) -> Any:
    method = getattr(module, name, None)
    return None if method is None else method()


def _no_such_class(missing: Sequence[str], trunk: nn.Module) -> Diagnostic:
    have = sorted({type(m).__name__ for m in trunk.modules() if next(m.parameters(recurse=False), None) is None})
    return codes.STRATEGY_FSDP_WRAP_CLASS(
        "the model has no module of the class to wrap",
        "training.fsdp_config",
        ", ".join(missing),
        f"one of: {', '.join(have[:12])}; or leave it out: the decoder layers are found",
    )
