"""Fully sharded data parallel (FSDP2): every rank holds a shard of each parameter, its gradient and its
moments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from paceline.config.registries.optimizers import StateSplit, supports
from paceline.core.errors import ConfigError
from paceline.models.attention.context_parallel import batch_sharder, check_context_parallel
from paceline.models.loading.materialize import build_on_meta, fill
from paceline.models.parallel.tensor_parallel import apply_tensor_parallel
from paceline.models.quantized_linear import packing
from paceline.plan.plan import OptimizerSpec, Plan
from paceline.plan.strategy_options import FsdpOptions
from paceline.protocols.batch import Batch
from paceline.protocols.model import BuildOptions, ModelFactory, RootModule
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard, ShardReader
from paceline.runtime.device.device import sum_dtype
from paceline.runtime.process_group.device_mesh import device_mesh, sharding_mesh
from paceline.runtime.process_group.world import World
from paceline.strategies import codes
from paceline.strategies.fsdp import state
from paceline.strategies.fsdp.state import ShardedHandle, blocks_of
from paceline.strategies.fsdp.wrapping import Dtypes, Units, shard
from paceline.strategies.grad_norm import squares
from paceline.strategies.model_handle import Handle, ParameterAccess
from paceline.strategies.optimizers.build import build_optimizer
from paceline.strategies.replicated_state import ReadOnce
from paceline.strategies.strategy import Strategy, evaluating


class FSDP(Strategy):
    """``fully_shard`` over ``dp_shard × cp``, replicated over ``dp_replicate``, inside tensor-parallel groups
    if the mesh has them.

    full_shard, shard_grad_op, no_shard and the hybrids differ in the mesh and in when parameters are freed
    (``FsdpOptions.reshard_after_forward``). Gradients of a large model are reduce-scattered after every
    micro-batch, so that between two a rank holds only its shard of them. With replication they are
    all-reduced over the replicas once per window.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        if world.world_size == 1:
            raise ConfigError(codes.STRATEGY_FSDP_WORLD("training.distributed_strategy"))
        super().__init__(world, plan)
        self.how = plan.engine.sharded or FsdpOptions()
        self.averaging_factor = 1.0  # gradients are summed over the ranks
        self.collective_forward = True
        self.collective_decoding = not self.how.gather_for_generation  # the whole model does not fit
        self._source: RootModule | None = None
        self.access = ParameterAccess(state.whole, state.local, self._of_first)

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The run's device mesh, created for the first model."""
        return device_mesh(self.world, self.plan.mesh)

    @property
    def dtypes(self) -> Dtypes:
        """The dtypes of gathered parameters and of gradient reduction."""
        precision = self.plan.precision
        low = precision.compute in ("bfloat16", "float16")
        return (
            Dtypes(getattr(torch, precision.compute), getattr(torch, precision.reduce)) if low else Dtypes()
        )

    @cached_property
    def _sharder(self) -> Callable[[Batch], Batch]:
        return batch_sharder(
            self.mesh, method=self.how.cp_method, sequence_parallel=self.how.sequence_parallel
        )

    def shard_batch(self, batch: Batch) -> Batch:
        """Return the rank's block of the tokens under context parallelism, padded so that sequence
        parallelism can split it.
        """
        return self._sharder(batch).pinned_as(batch).to(self.world.device)

    # --- life of a model

    def prepare(self, role: Role, build: ModelFactory, optimizer: OptimizerSpec | None) -> ShardedHandle:
        """Build, shard, and create the optimizer over this rank's shards; ``optimizer=None`` freezes the
        model (it is sharded too).
        """
        # Before the model is built: a large one takes minutes.
        check_optimizer(optimizer)
        root = self._build(build)
        if optimizer is None:
            root.requires_grad_(False).eval()
        handle = self._shard(role, root)
        if optimizer is not None:
            handle.optimizer = build_optimizer(optimizer, handle.named(), handle.blocks)
            handle.scaler = (
                torch.amp.GradScaler(self.world.device.type) if self.plan.precision.scaler else None
            )
        return handle

    def _build(self, build: ModelFactory) -> RootModule:
        """Build the whole model on the host, as it may not fit on a device.

        With a meta start each rank reads its own part later. Where that cannot be, only rank 0's host holds
        the model, for ``_shard`` to broadcast.
        """
        options = BuildOptions(
            device=torch.device("cpu"),
            fused=self.plan.mesh.tp == 1,
            engine_casts=self.dtypes.compute is not None,
            packs=self.how.meta_start,
            in_step=True,
        )
        if not self.how.meta_start:
            return build(options)
        root, self._source = build_on_meta(build, options, self.world)
        return root

    def _shard(self, role: Role, root: RootModule) -> ShardedHandle:
        """Shard ``root``: first over the tp group, then by FSDP2."""
        # tp cuts first, then FSDP2 cuts what is left of each weight (``_StridedShard``): the order of the
        # mesh's axes.
        self._apply_tensor_parallel(root)
        units = shard(root, getattr(root, "hf", root), sharding_mesh(self.mesh), self.how, self.dtypes)
        # After sharding, so that only this rank's shards get storage.
        if any(parameter.is_meta for parameter in root.parameters()):
            device = torch.device("cpu") if self.how.cpu_offload else self.world.device
            place = packing(root, getattr(torch, self.plan.precision.master))
            fill(root, self._source, self.world, device, place)
            self._source = None
        # After the values: FSDP2's lazy init raises on a meta parameter.
        units.start()
        blocks = blocks_of(root.plain_named_parameters(), self.plan.mesh, self.world.rank)
        return ShardedHandle(role, root, root, blocks=blocks, units=units)

    def _apply_tensor_parallel(self, root: RootModule) -> None:
        """Apply tensor (and sequence) parallelism if the mesh has it, and check the model for context
        parallelism.
        """
        mesh, how = self.plan.mesh, self.how
        if mesh.cp > 1:
            check_context_parallel(root, mesh.cp, how.cp_method, mesh.tp)
        if mesh.tp > 1:
            apply_tensor_parallel(
                root,
                self.mesh["tp"],
                sequence_parallel=how.sequence_parallel,
                loss_parallel=how.loss_parallel,
            )

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Return the root itself: FSDP2 changes its class in place."""
        return root

    @contextlib.contextmanager
    def generating(self, handle: Handle) -> Iterator[RootModule]:
        """Yield the model for decoding. Collective on entry and exit.

        If the whole model fits, every rank gathers it, in the dtype that it computes in. Ranks may decode
        independently, except within a tp group: with the same prompts and seeds its ranks choose the same
        tokens. Else layers are gathered in turn, and every forward is a collective (``collective_decoding``).
        """
        units = _units(handle)
        with handle.averaged(), evaluating(handle.root):
            if self.collective_decoding:
                units.reshard_between_layers()
            else:
                units.gather()
            try:
                yield handle.root
            finally:
                units.free(self.how.reshard_after_forward)

    def _of_first(self, values: Tensor) -> Tensor:
        """Return what the first rank of the tensor-parallel group has."""
        if self.plan.mesh.tp == 1:
            return values
        group = self.mesh["tp"].get_group()
        return self.world.send_tensor(values, dist.get_global_rank(group, 0), group)

    def export_state(self, handle: Handle) -> Iterator[Shard]:
        """Yield this rank's shards."""
        return state.export_state(_sharded(handle), self.world.rank)

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Read this rank's shards; where several ranks have the same shards, one reads and sends them."""
        if self.plan.mesh.dp_replicate > 1:
            # Replicas make the same calls in the same order, as ``ReadOnce`` requires.
            reader = ReadOnce(reader, self.world, self.mesh["dp_replicate"].get_group())
        state.import_state(_sharded(handle), reader)

    # --- training

    def zero_grad(self, handle: Handle) -> None:
        """Clear the gradients of the last window."""
        _sharded(handle).drop_gradients()

    @contextlib.contextmanager
    def no_sync(self, handle: Handle) -> Iterator[None]:
        """For all micro-batches but the last: no reduction at all if whole gradients are small, else no
        all-reduce over replicas.

        With ``reshard_after_forward`` off parameters also stay gathered after the backward, for the next
        forward.
        """
        # Small models keep whole gradients until the last micro-batch, which saves communication.
        units = _units(handle).all()
        num_bytes = sum(
            b.parameter.numel() * b.parameter.itemsize
            for b in _sharded(handle).blocks
            if b.local.requires_grad
        )
        for unit in units:
            if num_bytes <= self.how.whole_gradient_bytes:
                # Without ``recurse``: every unit is in the list itself.
                unit.set_requires_gradient_sync(False, recurse=False)
            unit.set_requires_all_reduce(False, recurse=False)
            unit.set_reshard_after_backward(self.how.reshard_after_forward, recurse=False)
        try:
            yield
        finally:
            for unit in units:
                unit.set_requires_gradient_sync(True, recurse=False)
                # The last backward frees the parameters: until the next window only shards are held.
                unit.set_reshard_after_backward(True, recurse=False)

    def _grad_norm(self, handle: Handle) -> Tensor:
        """Return the norm over all shards, each counted once; squares are summed in float64.

        The scaler's ``found_inf`` is set from the global norm, as a rank sees overflows in its own shards
        only.
        """
        sharded, scaler = _sharded(handle), handle.scaler
        sharded.take_gradients()
        if scaler is not None:
            scaler.unscale_(handle.stepper)
        # A shard that several ranks hold is counted once: divide by its number of copies.
        held = [(b.local.grad, b.copies) for b in sharded.blocks if b.local.grad is not None]
        total = torch.zeros((), dtype=sum_dtype(self.world.device), device=self.world.device)
        if held:
            # float64 [shards], a divisor each: one all-reduce over all ranks then counts every shard once.
            copies = torch.tensor([c for _, c in held], dtype=total.dtype)
            copies = copies.to(self.world.device, non_blocking=True)
            total = (squares([g for g, _ in held]).to(copies.device) / copies).sum()
        square = self.world.all_reduce_tensor(total)
        if scaler is not None:
            for found_inf in scaler._found_inf_per_device(handle.stepper).values():
                # ``unscale_`` has looked at this rank's shards alone; ranks that decided differently would
                # drift apart.
                found_inf.copy_(~torch.isfinite(square))
        return square.sqrt()

    # --- without gradients

    @contextlib.contextmanager
    def inference(self, handle: Handle) -> Iterator[None]:
        """As the base class; afterwards frees what these forwards gathered, so that the next backward does
        not prefetch for them.
        """
        with evaluating(handle.root):
            yield
        units = _sharded(handle).units
        if units is not None:
            units.reset_prefetch_order()


def _sharded(handle: Handle) -> ShardedHandle:
    assert isinstance(handle, ShardedHandle)
    return handle


def _units(handle: Handle) -> Units:
    units = _sharded(handle).units
    assert units is not None
    return units


def check_optimizer(spec: OptimizerSpec | None) -> None:
    if spec is not None and not supports(spec.name, StateSplit.SHARDS):
        raise ConfigError(codes.STRATEGY_OPTIMIZER_SHARDED("training.optim", spec.name, name=spec.name))
