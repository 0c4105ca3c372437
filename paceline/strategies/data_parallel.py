"""One process, several devices: the training of ``nn.DataParallel``, with sums and weights instead of means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan.plan import Plan
from paceline.runtime.world import World
from paceline.seam.algorithm import Objective
from paceline.seam.batch import Batch
from paceline.seam.model import BuildOptions, ModelFactory
from paceline.seam.optimizer import OptimizerSpec
from paceline.seam.roles import Ask, Role
from paceline.seam.shard import ShardReader
from paceline.strategies.base import Handles, Strategy, add_evaluation
from paceline.strategies.handle import Handle
from paceline.strategies.replicas import scatter, side_by_side


@dataclass
class ReplicatedHandle(Handle):
    """A handle with a copy of the root on every device but the first."""

    replicas: list[nn.Module] = field(default_factory=list)


class DataParallel(Strategy):
    """A micro-batch is shared out by documents over the devices of this process; each computes its part in a thread.

    What ``nn.DataParallel`` does in eight steps a batch (scatter, copy the model, forward in threads, gather, loss on the first device, scatter
    its gradient, backward, reduce to the first device) with its costs: the threads share Python's lock, the first device keeps
    optimizer and sums besides its copy, weights are sent out again after every step, and it ends at one machine. DDP has none of
    them. On one device, or on a CPU, there is nothing to share out and it computes exactly as ``single``.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        if world.world_size != 1:
            raise ConfigError(
                Diagnostic(
                    "strategy.data_parallel_world",
                    "the strategy 'data_parallel' drives all devices from one process",
                    where="training.distributed_strategy",
                    found=f"{world.world_size} processes",
                    hint="--nproc 1, or ddp",
                )
            )
        super().__init__(world, plan)
        self.devices = self.devices_of(int(plan.engine.get("devices") or 1))

    def devices_of(self, count: int) -> list[torch.device]:
        """The first is where the model, its optimizer and all sums live."""
        if self.world.device.type != "cuda" or count <= 1:
            return [self.world.device]
        first = self.world.device.index or 0
        others = [i for i in range(torch.cuda.device_count()) if i != first]
        return [torch.device("cuda", i) for i in [first, *others][:count]]

    # --- life of a model -------------------------------------------------------------------------------------------

    def wrap(self, role: Role, root: nn.Module) -> nn.Module:
        """The root itself: copies are called beside it."""
        return root

    def prepare(self, role: Role, build: ModelFactory, optimizer: OptimizerSpec | None) -> ReplicatedHandle:
        """The model on the first device, copies on the others."""
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
        """Into the first device's model, and from there to the copies."""
        super().import_state(handle, reader)
        send_weights(_replicated(handle))

    # --- training --------------------------------------------------------------------------------------------------

    def microstep(
        self,
        handle: Handle,
        batch: Batch,
        algorithm: Objective,
        scales: Mapping[str, float],
        sums: dict[str, Tensor],
        *,
        last: bool,
    ) -> None:
        """Forwards side by side, one backward through all of them; after the last micro-batch the copies' gradients are added to the first's."""
        replicated = _replicated(handle)
        if not replicated.replicas:
            return super().microstep(handle, batch, algorithm, scales, sums, last=last)
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        for part, outputs in self._answers(replicated, batch, algorithm.ask(handle.role, training=True)):
            for term, value in algorithm.losses(handle.role, outputs, part).items():
                here = value.to(self.world.device)
                sums[term] += here.detach()
                total = total + here * scales[term]
            self.watch(handle.role, outputs, part, algorithm, sums)
        self.backward(handle, total)
        if last:
            collect_gradients(replicated)
        return None

    def step(self, handle: Handle, norm: Tensor, *, lr: float, max_grad_norm: float | None, apply: bool) -> None:
        """As the base; then the new weights go to the copies."""
        super().step(handle, norm, lr=lr, max_grad_norm=max_grad_norm, apply=apply)
        if apply:
            send_weights(_replicated(handle))

    def evaluated(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective, sums: dict[str, Tensor]
    ) -> Iterator[Batch]:
        """Shared out over the devices as in training."""
        if len(self.devices) == 1:
            yield from super().evaluated(handles, micro_batches, algorithm, sums)
            return
        for batch in micro_batches:
            for role in algorithm.trains:
                ask = algorithm.ask(role, training=False)
                for part, outputs in self._answers(_replicated(handles[role]), batch, ask):
                    here: dict[str, Tensor] = {}
                    add_evaluation(algorithm, role, outputs, part, here)
                    for name, value in here.items():
                        sums[name] = sums.get(name, 0.0) + value.to(self.world.device)
            yield batch

    def _answers(
        self, handle: ReplicatedHandle, batch: Batch, ask: frozenset[Ask]
    ) -> Sequence[tuple[Batch, dict[str, Tensor]]]:
        """The parts of ``batch``, each on its device, and what the model there answers."""
        parts = [part.to(device) for part, device in zip(scatter(batch, len(self.devices)), self.devices, strict=False)]
        models = [handle.module, *handle.replicas]
        for model in handle.replicas:
            model.train(handle.root.training)
        calls = [lambda model=model, part=part: model(part, ask) for model, part in zip(models, parts, strict=False)]
        return list(zip(parts, side_by_side(calls, self.devices), strict=True))


@torch.no_grad()
def send_weights(handle: ReplicatedHandle) -> None:
    """The root's parameters and buffers to every copy."""
    for replica in handle.replicas:
        for own, its in ((handle.root.parameters(), replica.parameters()), (handle.root.buffers(), replica.buffers())):
            for source, target in zip(own, its, strict=True):
                target.copy_(source, non_blocking=True)
        replica.refresh_compute_weights()  # type: ignore[operator]


@torch.no_grad()
def collect_gradients(handle: ReplicatedHandle) -> None:
    """The copies' gradients added to the root's, and forgotten."""
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
