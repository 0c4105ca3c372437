"""Measure the bytes of tensors from their storages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages behind ``tensors``, with padding, shared ones once; for a DTensor
    those of its local shard.
    """
    return sum({storage.data_ptr(): storage.nbytes() for storage in _storages(tensors)}.values())


def _storages(tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors:
        with torch.no_grad():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        # a quantised moment has a tensor for its codes, its scales and its lookup table
        names = local.__tensor_flatten__()[0] if is_traceable_wrapper_subclass(local) else None
        for one in [local] if names is None else [getattr(local, name) for name in names]:
            yield one.untyped_storage()
