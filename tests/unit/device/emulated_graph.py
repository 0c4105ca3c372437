"""A captured graph on the emulated device: the operations of a call, run again on the same tensors.

As in CUDA's: the host's code runs once, at the capture; results lie where they lay then; waiting for the
device is an error meanwhile. Replaying is one start for the host, however many kernels it has.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from emulated_machine import Machine
from emulated_tensor import DeviceTensor
from torch import Tensor
from torch.utils._pytree import tree_leaves


@dataclass
class Graph:
    """``torch.cuda.CUDAGraph``. ``kernels``: what one replay runs, by operation."""

    machine: Machine
    kernels: Counter[str] = field(default_factory=Counter)
    _runs: list[tuple[Callable[[], Any], Any]] = field(default_factory=list)
    _before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = field(default_factory=dict)

    def protect(self, func: Any, args: Any, kwargs: Any) -> None:
        """A capture runs nothing: what an operation will write is put back at its end."""
        for given, value in (*zip(func._schema.arguments, args, strict=False), *_named(func, kwargs)):
            if given.alias_info is None or not given.alias_info.is_write:
                continue
            for x in tree_leaves(value):
                if isinstance(x, DeviceTensor):
                    storage = x.untyped_storage()
                    self._before.setdefault(storage._cdata, (storage, storage.clone()))

    def put_back(self) -> None:
        """The end of the capture."""
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()

    def record(self, again: Callable[[], Any], out: Any) -> None:
        """``again`` computes the operation from the numbers that its inputs hold then."""
        self._runs.append((again, out))

    def replay(self) -> None:
        self.machine.kernels["graph"] += 1
        for again, out in self._runs:
            for old, new in zip(tree_leaves(out), tree_leaves(again()), strict=True):
                if isinstance(old, Tensor) and isinstance(new, Tensor):
                    _write(old, new)


def _named(func: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    return [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]


def graph_class(machine: Machine) -> type[Graph]:
    """The class ``CUDAGraph`` of this machine."""

    class CUDAGraph(Graph):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(machine)

    return CUDAGraph


def _write(old: Tensor, new: Tensor) -> None:
    """The result lies where it lay at the capture; a view or an operation in place has it there already."""
    held, made = (x.numbers if isinstance(x, DeviceTensor) else x for x in (old, new))
    if held.untyped_storage()._cdata != made.untyped_storage()._cdata:
        held.copy_(made)


@contextlib.contextmanager
def capturing(
    graph: Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = ""
) -> Iterator[None]:
    """``torch.cuda.graph``: every operation inside is recorded, none is counted as started by the host."""
    machine = graph.machine
    before, machine.kernels, machine.graph = machine.kernels, graph.kernels, graph
    try:
        yield
    finally:
        machine.kernels, machine.graph = before, None
        graph.put_back()
