"""Meter of live tensors: how many bytes of storage exist at a time, at most."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.simulate.counting import local_tensor


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
