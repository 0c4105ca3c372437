"""DistributedDataParallel: a whole model on every rank, gradients averaged during the last backward; alone,
or with an optimizer that is sharded over the ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from paceline.plan.hardware.device_kinds import CUDA, is_accelerator
from paceline.plan.plan import OptimizerSpec, Plan
from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard, ShardReader
from paceline.runtime.process_group.world import World
from paceline.strategies import replicated_state
from paceline.strategies.model_handle import Handle
from paceline.strategies.optimizers.build import recipe_of
from paceline.strategies.replicated_state import ReadOnce
from paceline.strategies.strategy import Strategy

# All-reducing 226 MB with gloo on loopback took 0.16 CPU seconds a rank in buckets of 5 MB, 0.13 in 25 MB
# (torch's default), 0.11 in 50 MB and more: if cores both compute and send, overlap gains nothing.
CPU_BUCKET_CAP_MB = 50
SENT_BYTES = 16 * 2**20  # of a weight at a time, and as much beside it


@torch.no_grad()
def same_states(root: nn.Module) -> None:
    """Copy rank 0's parameters and buffers to every rank, one at a time and in place. Collective.

    Ranks build them alike, but another kind of processor may round initial weights differently. Equal values
    are not written, so frozen weights mapped from a file stay mapped.
    """
    sent: set[tuple[int, int]] = set()
    for tensor in (*root.parameters(), *root.buffers()):
        # Tied weights are one memory under several names: sent once.
        memory = (tensor.data_ptr(), tensor.nbytes)
        if memory not in sent and tensor.numel():
            sent.add(memory)
            plain = tensor.detach()
            # As bytes, so that nan equals nan and -0.0 differs from 0.0: the copies must agree bit for bit.
            flat = plain.contiguous().view(-1).view(torch.uint8)
            differs = False
            for piece in torch.split(flat, SENT_BYTES):
                received = piece.clone()
                dist.broadcast(received, 0)
                # A write to a page of a memory-mapped file would copy the page into this process.
                if not torch.equal(received, piece):
                    differs = True
                    piece.copy_(received)
            # ``contiguous`` made a copy of a strided tensor, and only that copy was corrected.
            if differs and flat.data_ptr() != plain.data_ptr():
                plain.copy_(flat.view(tensor.dtype).view_as(plain))


class DDP(Strategy):
    """``torch.nn.parallel.DistributedDataParallel`` around the root module, with its options from
    ``training``.

    With one process the root is called without a wrapper.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.ddp_options = plan.ddp_options

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Wrap the root in DDP, with rank 0's parameters and buffers."""
        if self.world.world_size == 1:
            return root
        same_states(root)
        return DistributedDataParallel(
            root,
            init_sync=False,  # it would send buffers of 250 MiB beside the weights
            device_ids=[self.world.device.index] if is_accelerator(self.world.device.type) else None,
            bucket_cap_mb=self.ddp_options.bucket_cap_mb
            or (CPU_BUCKET_CAP_MB if self.world.device.type == "cpu" else None),
            find_unused_parameters=self.ddp_options.find_unused_parameters,
            forward_sync_buffers=self.ddp_options.broadcast_buffers,  # its name in torch 2.13
            static_graph=self.ddp_options.static_graph,
            gradient_as_bucket_view=self.ddp_options.gradient_as_bucket_view,
        )

    def no_sync(self, handle: Handle) -> contextlib.AbstractContextManager[None]:
        """Keep the gradients of this micro-step local."""
        module = handle.module
        return module.no_sync() if isinstance(module, DistributedDataParallel) else contextlib.nullcontext()

    def backward(self, handle: Handle, loss: Tensor) -> None:
        """Run the backward, and count what it waits for the other ranks' gradients."""
        with self.world.waits.after_graph(loss):
            super().backward(handle, loss)

    def zero_grad(self, handle: Handle) -> None:
        """Zero gradients in place if they are views into DDP's buckets and several micro-steps are
        accumulated, else free them.

        Freed gradients would be allocated a second time under ``no_sync``, next to the buckets. With a single
        backward each gradient is copied into its bucket when it is ready, and averaged on the way.

        With unused parameters they are always freed: the optimizer skips a parameter only if its gradient is
        None.
        """
        views = (
            isinstance(handle.module, DistributedDataParallel) and self.ddp_options.gradient_as_bucket_view
        )
        in_place = views and not self.ddp_options.find_unused_parameters and self.plan.batch.accumulation > 1
        handle.stepper.zero_grad(set_to_none=not in_place)

    def warm_up(self, handle: Handle, batch: Batch, algorithm: Objective) -> None:
        """Make two discarded passes, so that DDP has rebuilt its buckets before the first step.

        DDP records the order of gradients in the first backward, and rebuilds its buckets in that order in
        the second forward. Without this warm-up, sums over ranks are split differently in a run's first step
        than later. A resumed run would differ from an uninterrupted one in the last bits (seen with 4 ranks).
        Gradients, buffers and random state are restored. A filler row is a cheap ``batch``: it gives every
        parameter a gradient.
        """
        if not isinstance(handle.module, DistributedDataParallel):
            return
        accelerated = is_accelerator(self.world.device.type)
        devices = [self.world.device] if accelerated else []
        # A forward in training mode changes running statistics; two discarded passes must not.
        buffers = [(b, b.clone()) for b in handle.root.buffers()]
        local_batch = batch.to(self.world.device)
        handle.root.train()
        # Dropout of the two passes draws random numbers, which the run's own steps must find unused.
        with torch.random.fork_rng(
            devices=devices, device_type=self.world.device.type if accelerated else CUDA.name
        ):
            # Twice: the first backward records the order, the second forward rebuilds the buckets by it.
            for _ in range(2):
                handle.stepper.zero_grad(set_to_none=True)
                outputs = handle.module(local_batch, algorithm.required_outputs(handle.role, training=True))
                torch.stack(
                    list(algorithm.losses(handle.role, outputs, local_batch).values())
                ).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        # Clears what the discarded backward left in the buckets.
        self.zero_grad(handle)


class ZeroRedundancy(DDP):
    """``ZeroRedundancyOptimizer`` under DDP (ZeRO-1 of arXiv:1910.02054).

    Each rank steps its own whole parameters, with any optimizer, and broadcasts them: bitwise equal to
    DDP, as all ranks clip by the same norm.

    Not used: ``overlap_with_ddp`` (it skips the first steps and cannot clip), and torch's
    ``consolidate_state_dict`` (it pickles). Instead each rank saves the moments that it keeps, under plain
    names.
    """

    def _make_optimizer(self, spec: OptimizerSpec, root: RootModule) -> torch.optim.Optimizer:
        if self.world.world_size == 1:
            return super()._make_optimizer(spec, root)
        # The class and its arguments, not an optimizer: ``ZeroRedundancyOptimizer`` builds one over its own
        # part.
        recipe = recipe_of(spec, root.plain_named_parameters())
        optimizer = ZeroRedundancyOptimizer(
            recipe.groups,
            optimizer_class=recipe.cls,
            parameters_as_bucket_view=self.ddp_options.parameters_as_bucket_view,
            **recipe.kwargs,
        )
        optimizer.state = (
            optimizer.optim.state
        )  # its own state stays empty; moments are in the local optimizer
        return optimizer

    def export_state(self, handle: Handle) -> Iterator[Shard]:
        """Yield this rank's parameters with their moments, and its part of the frozen ones."""
        return replicated_state.export_state(handle, self.world.rank, self.world.world_size, _keepers(handle))

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Load all weights, and the moments of this rank's parameters."""
        once = ReadOnce(reader, self.world)
        replicated_state.import_state(handle, once, self.world.rank, _keepers(handle), of_moments=reader)


def _keepers(handle: Handle) -> dict[str, int]:
    """Return trained parameter → the rank that steps it."""
    optimizer = handle.optimizer
    if not isinstance(optimizer, ZeroRedundancyOptimizer):
        return {}
    parameters = handle.root.plain_named_parameters()
    # torch has no public name for this assignment (greedy by size, equal on all ranks).
    ranks: dict[nn.Parameter, int] = optimizer._param_to_rank  # type: ignore[attr-defined]
    return {name: ranks[p] for name, p in parameters if p.requires_grad}
