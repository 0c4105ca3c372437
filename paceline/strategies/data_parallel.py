"""One process, several devices: ``nn.DataParallel``'s training with sums and weights instead of means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.plan import Plan
from paceline.plan.strategy_options import ThreadOptions
from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.model import BuildOptions, ModelFactory, RootModule
from paceline.protocols.optimizer import OptimizerSpec
from paceline.protocols.roles import Output, Role
from paceline.protocols.shard import ShardReader
from paceline.protocols.window import StepOutcome
from paceline.runtime.process_group.world import World
from paceline.strategies import codes
from paceline.strategies.model_handle import Handle, Handles
from paceline.strategies.replicas import scatter, side_by_side
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import WindowRunner
from paceline.strategies.window.weights import Scale


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

    def _micro_step(
        self,
        handle: Handle,
        batch: Batch,
        algorithm: Objective,
        scales: Mapping[str, Scale],
        sums: dict[str, Tensor],
        *,
        last: bool,
    ) -> None:
        """Run the forwards in parallel, then one backward through all of them."""
        if not _replicated(handle).replicas:
            return super()._micro_step(handle, batch, algorithm, scales, sums, last=last)
        total = torch.zeros((), device=self.world.device)
        for part, outputs in self._forwards(
            handle, batch, algorithm.required_outputs(handle.role, training=True)
        ):
            total = total + self._loss(handle.role, outputs, part, algorithm, scales, sums).to(
                self.world.device
            )
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
            model.train(handle.root.training)
        calls = [
            lambda model=model, part=part: model(part, required)
            for model, part in zip(models, parts, strict=False)
        ]
        return list(zip(parts, side_by_side(calls, devices), strict=True))


class DataParallel(Strategy):
    """Scatter a micro-batch by documents over the devices of this process; each computes its part in a
    thread.

    ``nn.DataParallel`` does this in eight steps per batch (scatter, replicate the model, forward in threads,
    gather, loss on the first device, scatter its gradient, backward, reduce to the first device), and has
    these costs: the threads share Python's GIL, the first device holds the optimizer and the sums besides its
    replica, weights are copied again after every step, and it is limited to one machine. DDP has none of
    them. On one device, or on a CPU, nothing is scattered and it computes exactly as ``single``.
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
        others = [i for i in range(torch.accelerator.device_count()) if i != first]
        return [torch.device(self.world.device.type, i) for i in [first, *others][:count]]

    # --- life of a model

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Return the root itself; replicas are called by the runner."""
        return root

    def prepare(self, role: Role, build: ModelFactory, optimizer: OptimizerSpec | None) -> ReplicatedHandle:
        """Build the model on the first device and replicas on the others."""
        made = super().prepare(role, build, optimizer)
        replicas = [build(BuildOptions(device=device)).to(device) for device in self.devices[1:]]
        for replica in replicas:
            replica.train(made.root.training)
            if optimizer is None:
                replica.requires_grad_(False)
        handle = ReplicatedHandle(role, made.root, made.module, made.optimizer, made.scaler, replicas)
        send_weights(handle)
        return handle

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Load into the first device's model, then copy to the replicas."""
        super().import_state(handle, reader)
        send_weights(_replicated(handle))

    def finish(self, handle: Handle, *, lr: float, max_grad_norm: float | None) -> StepOutcome:
        """As the base class, on the sum of all replicas' gradients; then copy new weights to the replicas."""
        replicated = _replicated(handle)
        collect_gradients(replicated)
        outcome = super().finish(handle, lr=lr, max_grad_norm=max_grad_norm)
        send_weights(replicated)
        return outcome


@torch.no_grad()
def send_weights(handle: ReplicatedHandle) -> None:
    """Copy the root's parameters and buffers to every replica."""
    for replica in handle.replicas:
        for own, its in (
            (handle.root.parameters(), replica.parameters()),
            (handle.root.buffers(), replica.buffers()),
        ):
            for source, target in zip(own, its, strict=True):
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
            source.grad = None


def _replicated(handle: Handle) -> ReplicatedHandle:
    assert isinstance(handle, ReplicatedHandle)
    return handle
