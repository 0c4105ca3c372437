"""Meters of a simulated step: collectives by kind and bytes, saved activations, and live bytes at most."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.models.compute_dtype import compute_copy

_KINDS = (
    ("allreduce", "all-reduce"),
    ("all_reduce", "all-reduce"),
    ("reduce_scatter", "reduce-scatter"),
    ("allgather", "all-gather"),
    ("all_gather", "all-gather"),
    ("alltoall", "all-to-all"),
    ("all_to_all", "all-to-all"),
    ("broadcast", "broadcast"),
)
_IGNORED = ("wait_tensor", "barrier", "monitored_barrier")  # they move no data


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the collectives inside the context.

    Bytes are those of the full tensor (all-gather's output, reduce-scatter's input).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Record the operation and run it."""
        if func.namespace in ("c10d", "_c10d_functional"):
            self._note(func._opname, args)
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        if name in _IGNORED:
            return
        kind = next((kind for part, kind in _KINDS if part in name), name.strip("_"))
        sizes = [
            sum(t.numel() * t.itemsize for t in tree_leaves(arg) if isinstance(t, Tensor)) for arg in args[:2]
        ]
        # functional ones are given a shard and the number of ranks in place of an output
        ranks = args[1] if name.startswith("all_gather") and isinstance(args[1], int) else 1
        self.count[kind] += 1
        self.bytes[kind] += ranks * max(sizes, default=0)


class FakeValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answer data-dependent operations on fake tensors: all positions are labelled, no probability is tiny.

    ``nonzero`` of ``x != y`` returns every position, and ``nonzero`` of any other mask none.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._true: dict[int, Tensor] = {}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace ``nonzero`` on fake tensors, run everything else."""
        if func is torch.ops.aten.nonzero.default and isinstance(args[0], FakeTensor):
            mask = args[0]
            rows = mask.numel() if id(mask) in self._true else 0
            return torch.empty(rows, mask.dim(), dtype=torch.int64, device=mask.device)
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.ne.Scalar, torch.ops.aten.ne.Tensor):
            self._true[id(result)] = result
        return result


class SavedActivations:
    """Bytes that autograd saves while ``watching``: every storage once, without weights, for trunk and head
    apart."""

    def __init__(self, root: nn.Module) -> None:
        self.trunk = 0
        self.head = 0
        self.gathered = 0
        self._root = root
        self._seen: set[int] = set()
        self._alive: list[Tensor] = []
        self._weights: set[int] = set()
        self._in_head = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the saved tensors inside the context.

        FSDP2's gathered weights are recognised by type: parameters or views of them.
        """
        root: Any = self._root
        weights = [t for p in root.parameters() for t in (p, compute_copy(p))]
        self._weights = {local_tensor(t).untyped_storage()._cdata for t in (*weights, *root.buffers())}
        after = root.hf.base_model.register_forward_hook(self._head_begins)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
                yield
        finally:
            after.remove()
            self._in_head = False

    def release(self) -> None:
        """Drop the references, so that the memory is freed."""
        self._alive.clear()
        self._seen.clear()

    def _head_begins(self, *_: Any) -> None:
        self._in_head = True

    def _pack(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return tensor
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen and storage._cdata not in self._weights:
            self._seen.add(storage._cdata)
            self._alive.append(tensor)
            if self._in_head:
                self.head += storage.nbytes()
            else:
                self.trunk += storage.nbytes()
        return tensor


def gathered_bytes(root: nn.Module) -> int:
    """Return the bytes of the weights that FSDP2 has gathered at this moment."""
    gathered = []
    for module in root.modules():
        group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
        if group is not None and group.is_unsharded:
            gathered += [p.unsharded_param for p in group.fsdp_params]
    return held_bytes(gathered)


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Like ``strategies.model_handle.storage_bytes``, for tensors whose storages have no address."""
    sizes = {s._cdata: s.nbytes() for s in (local_tensor(t).untyped_storage() for t in tensors)}
    return sum(sizes.values())


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follow every storage that exists, or that operators create inside; ``peak``: the most bytes.

    Storages that are resized, as FSDP does with gathered weights, count with their size at the moment.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: dict[int, weakref.ref[UntypedStorage]] = {}
        for tensor in tensors:
            self._follow(local_tensor(tensor))
        self.before = self.peak = self._live()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operator, and count what exists then."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._follow(leaf)
        self.peak = max(self.peak, self._live())
        return result

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = weakref.ref(storage)

    def _live(self) -> int:
        live, gone = 0, []
        for key, reference in self._storages.items():
            storage = reference()
            if storage is None:
                gone.append(key)
            else:
                live += storage.nbytes()
        for key in gone:
            del self._storages[key]
        return live
