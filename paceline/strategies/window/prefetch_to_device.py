"""Micro-batches on their way to the device while the one before them computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from paceline.plan.hardware.device_kinds import kind_of
from paceline.protocols.batch import Batch


class CopiedAhead:
    """Copies the next micro-batch on a stream of its own, for devices that copy beside their kernels.

    Out of pageable memory the host would wait for such a copy, but never for the kernels before it.
    """

    def __init__(self, device: torch.device) -> None:
        """``device``: of this process. On one without streams nothing is copied ahead."""
        self._device = device
        self._stream = torch.Stream(device) if kind_of(device.type).pins else None

    def each(self, batches: Sequence[Batch], move: Callable[[Batch], Batch]) -> Iterator[Batch]:
        """Yield ``move(batch)`` in order, each after the copy of the next one was enqueued; ``move`` may
        enqueue copies only.
        """
        if self._stream is None:
            yield from map(move, batches)
            return
        ahead = self._enqueued(batches[0], move) if batches else None
        for following in [*batches[1:], None]:
            arriving, ahead = ahead, None if following is None else self._enqueued(following, move)
            assert arriving is not None
            yield self._ready(*arriving)

    def _enqueued(self, batch: Batch, move: Callable[[Batch], Batch]) -> tuple[Batch, torch.Event]:
        assert self._stream is not None
        with self._stream:
            moved = move(batch)
            return moved, self._stream.record_event()

    def _ready(self, moved: Batch, copied: torch.Event) -> Batch:
        """Let the kernels that follow wait for the copies of ``moved``, whose memory stays theirs until they
        are done.
        """
        computing = torch.accelerator.current_stream(self._device)
        computing.wait_event(copied)
        for tensor in moved.tensors():
            if tensor.device.type == self._device.type:
                tensor.record_stream(computing)
        return moved
