"""Numbers on their way from the device to the host, which reads them later and does not wait meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.plan.hardware.kinds import CPU, kind_of

_POLL_SECONDS = 0.005


class CopiedToHost:
    """Copies of ``tensors``, enqueued behind what computes them.

    On a device whose copies pass beside its kernels, into pinned memory (torch's own choice for an
    asynchronous copy); the tensors of a CPU are the copies, and those of other devices are waited for.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        [device] = {tensor.device for tensor in tensors}
        self._event: torch.Event | None = None
        if kind_of(device.type).pins:
            self._copies = [tensor.to(CPU.name, non_blocking=True) for tensor in tensors]
            self._event = torch.accelerator.current_stream(device).record_event()
        else:
            self._copies = [tensor.cpu() for tensor in tensors]

    @property
    def under_way(self) -> bool:
        """Whether reading may have to wait."""
        return self._event is not None

    def arrives(self, seconds: float) -> bool:
        """Whether the copies are there within ``seconds``. Raises nothing: the device may be broken."""
        until = time.monotonic() + seconds
        try:
            while self._event is not None and not self._event.query():
                if time.monotonic() > until:
                    return False
                time.sleep(_POLL_SECONDS)
        except RuntimeError:
            return False
        return True

    def read(self) -> list[Tensor]:
        """Return the numbers on the host, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies
