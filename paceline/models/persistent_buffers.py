"""Buffers that are part of a model's state, such as the load-balancing bias of a router. Most language models
have none.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def persistent_buffers(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that a state dict holds, under their plain names."""
    for prefix, module in hf.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer
