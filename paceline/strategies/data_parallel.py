"""One process, several devices: ``nn.DataParallel``'s training with sums and weights instead of means."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.plan import OptimizerSpec, Plan
from paceline.plan.strategy_options import ThreadOptions
from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.model import BuildOptions, ModelFactory, RootModule
from paceline.protocols.roles import Output, Role
from paceline.protocols.shard import ShardReader
from paceline.protocols.window import StepOutcome
from paceline.runtime.process_group.world import World
from paceline.strategies import codes
from paceline.strategies.model_handle import Handle, Handles
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import WindowRunner
from paceline.strategies.window.weights import WindowLosses


@dataclass
class ReplicatedHandle(Handle):
    """A handle with a replica of the root on every device but the first."""

    replicas: list[RootModule] = field(default_factory=list)

    @property
    def roots(self) -> tuple[RootModule, ...]:
        """The root and its replicas."""
        return (self.root, *self.replicas)

    def refresh(self) -> None:
        """Renew the low-precision copies, and the replicas."""
        super().refresh()
        send_weights(self)


class ReplicatedRunner(WindowRunner):
    """Scatters each micro-batch over the devices of a handle's replicas."""

    strategy: DataParallel

    def _micro_step(self, handle: Handle, batch: Batch, losses: WindowLosses, *, last: bool) -> None:
        """Run the forwards in parallel, then one backward through all of them."""
        if not _replicated(handle).replicas:
            return super()._micro_step(handle, batch, losses, last=last)
        # One backward through all parts: autograd runs each device's part on a thread of its own.
        total = torch.zeros((), device=self.world.device)
        required = losses.algorithm.required_outputs(handle.role, training=True)
        for part, outputs in self._forwards(handle, batch, required):
            total = total + losses.add(handle.role, outputs, part).to(self.world.device)
        return self.strategy.backward(handle, total)

    def _evaluated(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective, sums: dict[str, Tensor]
    ) -> Iterator[Batch]:
        """Scatter as in training."""
        if len(self.strategy.devices) == 1:
            yield from super()._evaluated(handles, micro_batches, algorithm, sums)
            return
        for batch in micro_batches:
            local_batch = self._with_reference(handles, self.strategy.shard_batch(batch), algorithm)
            for role in algorithm.trains:
                for part, outputs in self._forwards(
                    handles[role], local_batch, algorithm.required_outputs(role, training=False)
                ):
                    self._add_evaluation(algorithm, role, outputs, part, sums)
            yield batch

    def _forwards(
        self, handle: Handle, batch: Batch, required: frozenset[Output]
    ) -> Sequence[tuple[Batch, dict[str, Tensor]]]:
        """Return the parts of ``batch``, each on its device, with the outputs of the model there."""
        replicas, devices = _replicated(handle).replicas, self.strategy.devices
        parts = [part.to(device) for part, device in zip(scatter(batch, len(devices)), devices, strict=False)]
        models = [handle.module, *replicas]
        for model in replicas:
            # Modes are not shared: ``evaluating`` and ``train`` act on the root alone.
            model.train(handle.root.training)
        calls = [
            # Defaults bind this pair; a plain closure would see the last one.
            lambda model=model, part=part: model(part, required)
            for model, part in zip(models, parts, strict=False)
        ]
        return list(zip(parts, side_by_side(calls, devices), strict=True))


class DataParallel(Strategy):
    """Scatter a micro-batch by documents over the devices of this process; each computes its part in a
    thread.

    ``nn.DataParallel`` does this in eight steps per batch: scatter, replicate the model, forward in threads,
    gather, loss on the first device, scatter its gradient, backward, reduce to the first device. It has four
    drawbacks. The threads share Python's GIL; the first device holds the optimizer and the sums besides its
    replica; weights are copied again after every step; it is limited to one machine. DDP has none of these.
    On one device, or on a CPU, nothing is scattered and it computes exactly as ``single``.
    """

    runner = ReplicatedRunner

    def __init__(self, world: World, plan: Plan) -> None:
        if world.world_size != 1:
            raise ConfigError(
                codes.STRATEGY_DATA_PARALLEL_WORLD(
                    "training.distributed_strategy", f"{world.world_size} processes"
                )
            )
        super().__init__(world, plan)
        self.devices = self.devices_of(plan.engine.devices if isinstance(plan.engine, ThreadOptions) else 1)

    def devices_of(self, count: int) -> list[torch.device]:
        """Return the devices to use. The first one holds the model, its optimizer and all sums."""
        if not is_accelerator(self.world.device.type) or count <= 1:
            return [self.world.device]
        first = self.world.device.index or 0
        # The process's own device first, for it holds the optimizer and all sums.
        others = [i for i in range(torch.accelerator.device_count()) if i != first]
        return [torch.device(self.world.device.type, i) for i in [first, *others][:count]]

    # --- life of a model

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Return the root itself; replicas are called by the runner."""
        return root

    def prepare(self, role: Role, build: ModelFactory, optimizer: OptimizerSpec | None) -> ReplicatedHandle:
        """Build the model on the first device and replicas on the others."""
        first = super().prepare(role, build, optimizer)
        replicas = [build(BuildOptions(device=device)).to(device) for device in self.devices[1:]]
        for replica in replicas:
            replica.train(first.root.training)
            if optimizer is None:
                replica.requires_grad_(False)
        handle = ReplicatedHandle(role, first.root, first.module, first.optimizer, first.scaler, replicas)
        send_weights(handle)
        return handle

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Load into the first device's model, then copy to the replicas."""
        super().import_state(handle, reader)
        send_weights(_replicated(handle))

    def finish(self, handle: Handle, *, lr: float, max_grad_norm: float | None) -> StepOutcome:
        """As the base class, on the sum of all replicas' gradients; then copy new weights to the replicas."""
        replicated = _replicated(handle)
        # Sums, not means: the losses are already divided by the weight of the whole window.
        collect_gradients(replicated)
        outcome = super().finish(handle, lr=lr, max_grad_norm=max_grad_norm)
        send_weights(replicated)
        return outcome


@torch.no_grad()
def send_weights(handle: ReplicatedHandle) -> None:
    """Copy the root's parameters and buffers to every replica."""
    for replica in handle.replicas:
        for sources, targets in (
            (handle.root.parameters(), replica.parameters()),
            (handle.root.buffers(), replica.buffers()),
        ):
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
        replica.refresh_compute_weights()


@torch.no_grad()
def collect_gradients(handle: ReplicatedHandle) -> None:
    """Add the replicas' gradients to the root's, and clear them."""
    for replica in handle.replicas:
        for target, source in zip(handle.root.parameters(), replica.parameters(), strict=True):
            if source.grad is None:
                continue
            moved = source.grad.to(target.device)
            target.grad = moved if target.grad is None else target.grad.add_(moved)
            # Freed at once, so that the next window does not add to a gradient that was counted.
            source.grad = None


def _replicated(handle: Handle) -> ReplicatedHandle:
    assert isinstance(handle, ReplicatedHandle)
    return handle


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
    # Grad mode and the current device belong to a thread; a new one starts with torch's defaults.
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
        # Indices into ``bounds``: groups so far, multiplied by the group's size below.
        splits.append(best)
    splits.append(documents)
    splits = [split * batch.group for split in splits]
    return [_documents(batch, every, first, last) for first, last in zip(splits, splits[1:], strict=False)]


def _documents(batch: Batch, bounds: list[int], first: int, last: int) -> Batch:
    tokens = slice(bounds[first], bounds[last])
    edges = batch.cu_seqlens[first : last + 1] - bounds[first]
    return replace(
        batch,
        input_ids=batch.input_ids[:, tokens],
        labels=batch.labels[:, tokens],
        places=None,
        position_ids=batch.position_ids[:, tokens],
        cu_seqlens=edges,
        max_seqlen=int((edges[1:] - edges[:-1]).max()),
        document_ids=batch.document_ids[first:last],
        # Rows are counted once, with the first part.
        num_rows=batch.num_rows if first == 0 else 0,
        shared=(),  # a document may be on another device than the one it shares a prefix with
        extras={name: value[first:last] for name, value in batch.extras.items()},
        tokens={name: value[:, tokens] for name, value in batch.tokens.items()},
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
        items, outputs = list(inputs), []
        count = len(self.devices)
        with torch.no_grad():
            for start in range(0, len(items), count):
                part = items[start : start + count]
                calls = [
                    self._call(model, device, item)
                    for model, device, item in zip(self.copies, self.devices, part, strict=False)
                ]
                outputs += side_by_side(calls, self.devices)
        return outputs

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the module's current weights and buffers to all devices."""
        for replica in self.copies:
            replica.load_state_dict(self._module.state_dict())

    @staticmethod
    def _call(model: nn.Module, device: torch.device, given: Inputs) -> Callable[[], Any]:
        return lambda: model(_moved(given, device))


def _moved(value: Inputs, device: torch.device) -> Inputs:
    if value is not None and hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    return value
