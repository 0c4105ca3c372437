"""What happens to an operation that sees the emulated device: where its result lies, what it may mix, whether
the host waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from emulated_kernels import OWN
from emulated_machine import Machine, place
from emulated_tensor import DeviceTensor
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# the host reads the result, or its size depends on values
_READS = frozenset(
    [
        "_local_scalar_dense",
        "nonzero",
        "equal",
        "masked_select",
        "is_nonzero",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "bincount",
        "repeat_interleave",
        "grouped_mm_fallback",  # Transformers' own: an expert at a time
        "grouped_mm_fallback_backward",
    ]
)
_INDEXED = frozenset(
    ["index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"]
)
_ONE_DTYPE = frozenset(["native_layer_norm", "native_group_norm"])
_COPIES = frozenset(["copy_", "_to_copy"])
_ALLOCATES = frozenset(
    ["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "resize_"]
)
_COLLECTIVES = ("c10d", "_c10d")
_NEVER_MIXED = ("c10d", "_c10d", "fsdp")  # collectives take lists of either


class Emulation(TorchDispatchMode):
    """Sees operations without a tensor of the device: those that make one there."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(isinstance(x, DeviceTensor) for x in tensors):
            return run(func, args, kwargs)
        if self.machine.is_ours(kwargs.get("device")):
            return arrives_on(self.machine, func, args, kwargs, tensors)
        made = func(*args, **kwargs)
        # formulas of the backward allocate by ``grad.options()``, where C++ takes the gradient for the host's
        if not tensors and isinstance(made, Tensor) and torch._C._current_graph_task_id() != -1:
            return DeviceTensor(made, self.machine)
        return made


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on at least one tensor of the device."""
    leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    known = {id(x.numbers): x for x in leaves if isinstance(x, DeviceTensor)}
    machine = next(iter(known.values())).machine
    name = func._schema.name.partition("::")[2]
    for x in known.values():
        x.refuse_early_use(func)
    _refuse_mixes(func, name, args, leaves, machine)
    _refuse_mixed_dtypes(name, leaves)
    for sent in leaves if func._schema.name.startswith(_COLLECTIVES) else ():
        machine.refuse_float64(sent.dtype, wire=True)
    _note_waits(name, args, kwargs, machine)
    if launches(func):
        machine.kernels[name] += 1
    if machine.graph is not None:
        machine.graph.protect(func, args, kwargs)
    overload = func._schema.overload_name
    own = OWN.get(func._schema.name + ("." + overload if overload else ""))
    if own is not None:
        return _noted(machine, lambda: own(*args, **kwargs))
    if name == "copy_" and not isinstance(args[0], DeviceTensor):
        machine.wait("copy_ to the host")
    if name == "copy_" and not isinstance(args[1], DeviceTensor):
        _note_copy(machine, args[1], bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False)))
    if name == "_to_copy" and machine.to_host:
        if not kwargs.get("non_blocking"):
            machine.wait("copy to the host")
        return func(args[0].numbers, **kwargs)
    kept = {k: v for k, v in kwargs.items() if k not in ("pin_memory", "device", "non_blocking")}
    out = _noted(machine, lambda: func(*tree_map(_numbers, args), **tree_map(_numbers, kept)))
    if name == "copy_":
        return args[0]

    def back(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, DeviceTensor):
            return x
        return known.get(id(x)) if id(x) in known else DeviceTensor(x, machine)

    return tree_map(back, out)


def arrives_on(machine: Machine, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
    """A tensor made on the device, or copied to it from the host."""
    name = func._schema.name.partition("::")[2]
    if tensors and name == "_to_copy":
        _note_copy(machine, tensors[0], bool(kwargs.get("non_blocking")))
    elif launches(func):
        machine.kernels[name] += 1
    kept = {k: v for k, v in kwargs.items() if k not in ("pin_memory", "non_blocking")}
    made = _noted(machine, lambda: func(*args, **{**kept, "device": torch.device("cpu")}))
    shares = any(made.untyped_storage()._cdata == x.untyped_storage()._cdata for x in tensors)
    return DeviceTensor(made.clone() if shares else made, machine)


def _noted(machine: Machine, compute: Callable[[], Any]) -> Any:
    """Compute; a graph that is being captured computes it again at each replay."""
    out = compute()
    if machine.graph is not None:
        machine.graph.record(compute, out)
    return out


def _numbers(x: Any) -> Any:
    if isinstance(x, DeviceTensor):
        return x.numbers
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _refuse_mixes(func: Any, name: str, args: Any, leaves: list[Tensor], machine: Machine) -> None:
    if name in _COPIES or func._schema.name.startswith(_NEVER_MIXED):
        return
    if name in _INDEXED and isinstance(args[0], DeviceTensor):
        host = [x for x in tree_leaves(args[2:]) if isinstance(x, Tensor)]  # host indices are copied
    elif name in _INDEXED:
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the tensor (cpu): {func}"
        )
    else:
        host = leaves
    numbers = 1 if name.startswith("_fused_") else 0  # these kernels read numbers, too, from the device
    alien = [x for x in host if not isinstance(x, DeviceTensor) and x.dim() + numbers > 0]
    if alien:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices,"
            f" {machine.device} and {alien[0].device}! ({func})"
        )


def _refuse_mixed_dtypes(name: str, leaves: list[Tensor]) -> None:
    """A CPU normalises 16-bit values by fp32 weights; a card's kernels read all in the dtype of the input."""
    dtypes = {x.dtype for x in leaves if x.is_floating_point()}
    if name in _ONE_DTYPE and len(dtypes) > 1:
        first, *_ = (x.dtype for x in leaves)
        raise RuntimeError(f"expected scalar type {first}, but found {dtypes - {first}} ({name})")


def _note_waits(name: str, args: Any, kwargs: dict[str, Any], machine: Machine) -> None:
    if name in _READS and kwargs.get("output_size") is None:  # repeat_interleave may be told it
        machine.wait(name)
    if (
        name == "_grouped_mm"
        and machine.kind == "cuda"
        and (args[0].dtype != torch.bfloat16 or machine.capability[0] not in (9, 10))
    ):
        machine.wait(name)
    if name in _INDEXED:
        for index in tree_leaves(args[1]):
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                machine.wait(f"{name} by a mask")
            elif isinstance(index, Tensor) and not isinstance(index, DeviceTensor):
                machine.wait(f"{name} by indices of the host")


def _note_copy(machine: Machine, source: Tensor, non_blocking: bool) -> None:
    if not non_blocking:
        machine.wait("copy to the device")
        return
    machine.copies[place()] += 1
    if machine.stream is not None:
        machine.beside[place()] += 1
    if not source.is_pinned():
        machine.pageable[place()] += 1


@cache
def launches(func: Any) -> bool:
    """Whether an operation starts a kernel: no view, no mere allocation, no read."""
    name = func._schema.name.partition("::")[2]
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    copies = name in _READS or name in ("_unsafe_view", "detach", "alias", "lift_fresh", "_reshape_alias")
    return not (views or copies or name in _ALLOCATES)
