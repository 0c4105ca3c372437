"""How many bytes tensors take, counted on the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind ``tensors``: what several share counts once, padding and all; of a DTensor what this rank holds."""
    return sum({storage.data_ptr(): storage.nbytes() for storage in _storages(tensors)}.values())


def _storages(tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors:
        with torch.no_grad():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        yield local.untyped_storage()
