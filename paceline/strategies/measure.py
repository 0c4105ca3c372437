"""How many bytes a model's state takes on this rank, counted on the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from paceline.models.precision import compute_copy
from paceline.models.quantised import scales_of
from paceline.strategies.handle import Handle


def state_bytes(handle: Handle) -> dict[str, int]:
    """Bytes of ``parameters`` (low-precision copies and scales of packed weights included), ``gradients`` and ``optimizer`` (moments; not its counters of steps) held here."""
    parameters = list(handle.root.parameters())
    states = handle.optimizer.state.values() if handle.optimizer is not None else ()
    return {
        "parameters": storage_bytes([*parameters, *map(compute_copy, parameters), *scales_of(handle.root)]),
        "gradients": storage_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer": storage_bytes(v for state in states for v in state.values() if isinstance(v, Tensor) and v.ndim),
    }


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind ``tensors``: what several share counts once, padding and all; of a DTensor what this rank holds."""
    return sum({storage.data_ptr(): storage.nbytes() for storage in _storages(tensors)}.values())


def _storages(tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors:
        with torch.no_grad():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        yield local.untyped_storage()
