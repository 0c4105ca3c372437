"""Numbers on their way from the device to the host, which reads them later and does not wait meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.plan.hardware.device_kinds import CPU, kind_of

_POLL_SECONDS = 0.005


def stamp(device: torch.device) -> torch.Event | None:
    """Return a mark behind what is enqueued on ``device``, which keeps the time of its passing; None on
    devices whose copies the host waits for.
    """
    if not kind_of(device.type).pins:
        return None
    return torch.accelerator.current_stream(device).record_event(torch.Event(device, enable_timing=True))


class CopiedToHost:
    """Copies of ``tensors``, enqueued behind what computes them.

    On a device whose copies pass beside its kernels, into pinned memory (torch's own choice for an
    asynchronous copy); the tensors of a CPU are the copies, and those of other devices are waited for.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        [device] = {tensor.device for tensor in tensors}
        pins = kind_of(device.type).pins
        self._copies = [
            tensor.to(CPU.name, non_blocking=True) if pins else tensor.cpu() for tensor in tensors
        ]
        self._event = stamp(device)

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

    def seconds_since(self, start: torch.Event | None) -> float | None:
        """Return the device's seconds from ``start`` to these copies, which have been read; None where the
        device keeps no time.
        """
        if start is None or self._event is None:
            return None
        try:
            return float(start.elapsed_time(self._event)) / 1e3
        except (RuntimeError, NotImplementedError):  # a plugged-in device may mark without a time
            return None
