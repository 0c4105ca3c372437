"""Replicas of one model on several devices of one process: threads that run them in parallel, and inference
with replicas copied once.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.protocols.batch import Batch

T = TypeVar("T")
#: What a model is called with.
Inputs: TypeAlias = (
    "Tensor | Batch | float | str | None | list[Inputs] | tuple[Inputs, ...] | dict[str, Inputs]"
)


def side_by_side(calls: Sequence[Callable[[], T]], devices: Sequence[torch.device]) -> list[T]:
    """Run ``calls`` in parallel, each in its own thread on its device (as
    ``torch.nn.parallel.parallel_apply``); return results in order.

    Raises the first error. Python runs one thread at a time: only the devices work in parallel.
    """
    if len(calls) == 1:
        return [calls[0]()]
    results: dict[int, T] = {}
    errors: list[BaseException | None] = [None] * len(calls)
    with_grad = torch.is_grad_enabled()

    def run(index: int) -> None:
        device = devices[index]
        try:
            with (
                torch.set_grad_enabled(with_grad),
                torch.accelerator.device_index(device.index or 0)
                if is_accelerator(device.type)
                else contextlib.nullcontext(),
            ):
                results[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            errors[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return [results[index] for index in range(len(calls))]


def scatter(batch: Batch, count: int) -> list[Batch]:
    """Split into at most ``count`` micro-batches of whole documents with nearly equal tokens; all rows are
    counted in the first.
    """
    every = batch.cu_seqlens.tolist()
    bounds = every[:: batch.group]  # a group of documents is not split
    documents, total = len(bounds) - 1, bounds[-1]
    splits = [0]
    # The document boundary nearest to an equal split, leaving at least one group to each later part.
    for part in range(1, min(count, documents)):
        wanted = total * part / count
        best = min(
            range(splits[-1] + 1, documents - (min(count, documents) - part) + 1),
            key=lambda d: abs(bounds[d] - wanted),
        )
        splits.append(best)
    splits.append(documents)
    splits = [split * batch.group for split in splits]
    return [_documents(batch, every, first, last) for first, last in zip(splits, splits[1:], strict=False)]


def _documents(batch: Batch, bounds: list[int], first: int, last: int) -> Batch:
    place = slice(bounds[first], bounds[last])
    edges = batch.cu_seqlens[first : last + 1] - bounds[first]
    return replace(
        batch,
        input_ids=batch.input_ids[:, place],
        labels=batch.labels[:, place],
        places=None,
        position_ids=batch.position_ids[:, place],
        cu_seqlens=edges,
        max_seqlen=int((edges[1:] - edges[:-1]).max()),
        document_ids=batch.document_ids[first:last],
        num_rows=batch.num_rows if first == 0 else 0,
        shared=(),  # a document may be on another device than the one it shares a prefix with
        extras={name: value[first:last] for name, value in batch.extras.items()},
        tokens={name: value[:, place] for name, value in batch.tokens.items()},
    )


class ParallelInference:
    """A model copied once to every device, for many forwards: embedding a corpus, scoring, judging.

    ``nn.DataParallel`` copies the model in every forward, which is not needed without training. ``module`` is
    put into eval mode; the copies are independent of it afterwards (call ``refresh`` after it changes).
    """

    def __init__(self, module: nn.Module, devices: Sequence[torch.device | str]) -> None:
        if not devices:
            raise ValueError("at least one device is needed")
        self.devices = [torch.device(d) for d in devices]
        self._module = module.eval()
        self.copies = [copy.deepcopy(module).to(device) for device in self.devices]

    def __call__(self, inputs: Iterable[Inputs]) -> list[Any]:
        """Return the module's outputs for ``inputs`` in order, computing as many at a time as there are
        devices.

        Tensors, and tuples, lists and dicts of them, are moved to the device.
        """
        given, found = list(inputs), []
        count = len(self.devices)
        with torch.no_grad():
            for start in range(0, len(given), count):
                part = given[start : start + count]
                calls = [
                    self._call(model, device, one)
                    for model, device, one in zip(self.copies, self.devices, part, strict=False)
                ]
                found += side_by_side(calls, self.devices)
        return found

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the module's current weights and buffers to all devices."""
        for made in self.copies:
            made.load_state_dict(self._module.state_dict())

    @staticmethod
    def _call(model: nn.Module, device: torch.device, given: Inputs) -> Callable[[], Any]:
        return lambda: model(_moved(given, device))


def _moved(value: Inputs, device: torch.device) -> Inputs:
    if value is not None and hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(one, device) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(one, device) for one in value)
    return value
