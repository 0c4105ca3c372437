"""Divide a model into FSDP2 units and shard it (``torch.distributed.fsdp.fully_shard``): settings, units,
prefetch order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.models.compile_layers import layer_names
from paceline.models.fused_layers.qkv_rotary import FusedAttention
from paceline.models.fused_layers.swiglu import FusedSwiGLU
from paceline.plan.hardware.device_kinds import kind_of
from paceline.plan.strategy_options import FsdpOptions
from paceline.strategies import codes

# their forwards read the weights of their children: one unit each
FUSED_LEAVES = (FusedAttention, FusedSwiGLU)


@dataclass(frozen=True)
class Dtypes:
    """``compute``: dtype of gathered parameters (None: as the masters); ``reduce``: dtype of gradient
    reduction.
    """

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
        """Do FSDP2's lazy init now: marks the root even if a submodule is called first, and raises if a
        parameter is still on meta.
        """
        self.root._get_fsdp_state()._lazy_init()

    def gather(self) -> None:
        """Unshard all parameters until ``free``; forwards do not reshard them."""
        self.start()
        for unit in self.all():
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()

    def reshard_between_layers(self) -> None:
        """Until ``free``, a forward of the trunk gathers one inner unit after the other.

        Parameters of the root unit (embedding, last norm, head) stay gathered, as the root itself is not
        called.
        """
        self.start()
        self.root.set_reshard_after_forward(False, recurse=False)
        self.root.unshard()
        for unit in self.inner:
            unit.set_reshard_after_forward(True, recurse=False)

    def reset_prefetch_order(self) -> None:
        """After a forward without gradients, between steps or micro-batches: reshard, and clear the order of
        units, which is not that of a backward.
        """
        for unit in self.all():
            unit.reshard()
            for group in unit._get_fsdp_state()._fsdp_param_groups:
                group._post_forward_indices.clear()
                # Private names of torch 2.13; it has no public call that forgets a forward.
                group.comm_ctx.post_forward_order.clear()

    def free(self, reshard: bool) -> None:
        """Reshard, as between steps."""
        for unit in self.all():
            unit.reshard()
        for unit in self.inner:
            unit.set_reshard_after_forward(reshard, recurse=False)
        # Forwards without a backward stay in FSDP2's prefetch order. Ranks that made none (no prompts) would
        # prefetch other units than the others in the next backward, and deadlock.
        for unit in self.all():
            state = unit._get_fsdp_state()
            if state._fsdp_param_group is not None:
                state._fsdp_param_group._post_forward_indices.clear()
            state._comm_ctx.post_forward_order.clear()


def shard(root: nn.Module, trunk: nn.Module, mesh: DeviceMesh, how: FsdpOptions, dtypes: Dtypes) -> Units:
    """Shard ``root`` over ``mesh`` in place: the units of ``trunk`` first, the rest as the root's own unit.

    Gradients are summed over the mesh, not averaged (contract 2 divides by the global weight already).
    """
    # a unit's output may be a view (the fused MLP under the size policy), but it is never written in place
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    offload = (
        CPUOffloadPolicy(pin_memory=kind_of(mesh.device_type).pins) if how.cpu_offload else OffloadPolicy()
    )
    inner = [
        fully_shard(
            unit,
            mesh=mesh,
            reshard_after_forward=how.reshard_after_forward,
            mp_policy=_precision(dtypes, cast_inputs=True),
            offload_policy=offload,
        )
        for unit in units_of(trunk, how)
    ]
    # the root's parameters (embedding, last norm, head) are needed first in the backward: keep them
    # Last: FSDP2 gives a module the parameters that no unit inside it has taken.
    root_unit = fully_shard(
        root,
        mesh=mesh,
        reshard_after_forward=False,
        mp_policy=_precision(dtypes, cast_inputs=False),
        offload_policy=offload,
    )
    units = Units(root_unit, inner)
    for unit in units.all():
        # FSDP2 divides by the size of the mesh by default, as if losses were means.
        unit.set_gradient_divide_factor(1.0)
        # else a factor of 1 becomes PREMUL_SUM, which gloo lacks
        unit.set_force_sum_reduction_for_comms(True)
    _prefetch(units, how)
    return units


def _precision(dtypes: Dtypes, *, cast_inputs: bool) -> MixedPrecisionPolicy:
    return MixedPrecisionPolicy(
        param_dtype=dtypes.compute, reduce_dtype=dtypes.reduce, cast_forward_inputs=cast_inputs
    )


def _prefetch(units: Units, how: FsdpOptions) -> None:
    """Set FSDP2's prefetch order. It prefetches in the backward by default; naming the unit itself, which is
    gathered already, turns that off.
    """
    if how.backward_prefetch != "backward_pre":
        for unit in units.all():
            unit.set_modules_to_backward_prefetch([unit])
    if how.forward_prefetch:
        for unit, following in zip(units.all(), units.inner, strict=False):
            unit.set_modules_to_forward_prefetch([following])


def units_of(trunk: nn.Module, how: FsdpOptions) -> list[nn.Module]:
    """Return the modules that become units, in the model's order. Raises ConfigError for a class that the
    model does not have.
    """
    if how.wrap.policy == "none":
        return []
    off = _switched_off(trunk)
    if how.wrap.policy == "size":
        return [m for m in _by_size(trunk, how.wrap.min_num_params) if id(m) not in off]
    modules = (
        wrapped_classes(trunk, how.wrap.classes)
        if how.wrap.classes
        else [m for m in trunk.modules() if _is_one_of(m, layer_classes(trunk))]
    )
    # A layer inside a layer of the list (a wrapper of a class by the same name) belongs to the outer unit.
    inside = {id(child) for m in modules for child in m.modules() if child is not m}
    return [m for m in modules if id(m) not in inside | off]


def _switched_off(trunk: nn.Module) -> set[int]:
    """Return the ids of modules in pooling heads that a tower does not compute.

    FSDP2 gathers a unit when it is called, and fails at a gradient of one that never was. In the root's
    unit such weights are gathered with the others.
    """
    heads = [
        head
        for module in trunk.modules()
        if getattr(module, "use_head", True) is False
        and isinstance(head := getattr(module, "head", None), nn.Module)
    ]
    return {id(module) for head in heads for module in head.modules()}


def wrapped_classes(trunk: nn.Module, classes: Sequence[str]) -> list[nn.Module]:
    """Return the modules of these classes. Raises ConfigError for a class of which there are none."""
    modules = [m for m in trunk.modules() if _is_one_of(m, classes)]
    missing = set(classes) - {name for m in modules for name in _names(m)}
    if missing:
        raise ConfigError(_no_such_class(sorted(missing), trunk))
    return modules


def layer_classes(trunk: nn.Module) -> tuple[str, ...]:
    """Return the class names of the model's decoder layers: those that it declares unsplittable and
    contains.
    """
    return tuple(sorted({name for m in trunk.modules() for name in _names(m)} & layer_names(trunk)))


def _names(module: nn.Module) -> set[str]:
    """Return the names of a module's class and its base classes (kernels and engines swap a module's
    class).
    """
    return {kind.__name__ for kind in type(module).__mro__}


def _is_one_of(module: nn.Module, classes: Sequence[str]) -> bool:
    return not _names(module).isdisjoint(classes)


def _by_size(trunk: nn.Module, least: int) -> list[nn.Module]:
    """Return modules with at least ``least`` parameters that are in no unit inside them, found from the
    leaves up (as FSDP1's size policy).
    """
    kept_whole = {
        id(m)
        for name in ("get_input_embeddings", "get_output_embeddings")
        if (m := _call(trunk, name)) is not None
    }
    # Children first: what is in an inner unit does not count for the modules around it.
    units: list[nn.Module] = []

    def visit(module: nn.Module) -> int:
        """Return how many parameters of ``module`` are in no unit."""
        if id(module) in kept_whole:  # read without calling the head, and maybe tied to the embedding
            return 0
        # Taken as one, since a forward that reads its children's weights does not call the children.
        if isinstance(module, FUSED_LEAVES):
            rest = sum(p.numel() for p in module.parameters())
        else:
            rest = sum(p.numel() for p in module.parameters(recurse=False)) + sum(
                visit(child) for child in module.children()
            )
        if (
            module is not trunk
            and rest >= max(least, 1)
            # A list is never called, so no hook would gather its parameters.
            and not isinstance(module, (nn.ModuleList, nn.ModuleDict))
        ):
            units.append(module)
            return 0
        return rest

    visit(trunk)
    # Inner units are sharded before those around them.
    order = {id(m): i for i, m in enumerate(trunk.modules())}
    depth = {id(m): sum(any(c is m for c in unit.modules()) for unit in units) for m in units}
    return sorted(units, key=lambda m: (-depth[id(m)], order[id(m)]))


def _call(module: nn.Module, name: str) -> nn.Module | None:
    method: Callable[[], nn.Module | None] | None = getattr(module, name, None)
    return None if method is None else method()


def _no_such_class(missing: Sequence[str], trunk: nn.Module) -> Diagnostic:
    have = sorted(
        {type(m).__name__ for m in trunk.modules() if next(m.parameters(recurse=False), None) is None}
    )
    return codes.STRATEGY_FSDP_WRAP_CLASS(
        "training.fsdp_config", ", ".join(missing), have=", ".join(have[:12])
    )
