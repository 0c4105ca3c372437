"""DeepSpeed: ZeRO stages 0 to 3, offload to CPU and NVMe, AutoTP and Ulysses, through the same window as
every other strategy.

One class for ``deepspeed`` (the stage is in its JSON), ``zero1``, ``zero2`` and ``zero3``; see
``deepspeed.config`` for who owns what.

DeepSpeed's flops profiler for models with fused kernels: registers its hooks early enough, and counts
products from shapes.

By itself it registers its hooks between the root's own, so the root's latency is the time since 1970 and its
counts are lost. It counts calls of ``nn.Linear`` and ``torch.matmul``; here kernels compute projections,
gates and the head without calling those modules.

A step that DeepSpeed measures, clips and makes in one call, left out where its norm is above a limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from paceline.config.registries.optimizers import BUILT, StateSplit, supports
from paceline.core.errors import ConfigError
from paceline.core.json_types import as_object
from paceline.models.attention.context_parallel import ULYSSES, ContextParallel, check_context_parallel
from paceline.models.flops import multiply_adds
from paceline.models.module_tensors import replaced
from paceline.plan.plan import OptimizerSpec
from paceline.protocols.batch import Batch
from paceline.protocols.model import ModelFactory, RootModule
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard, ShardReader
from paceline.protocols.window import StepLimit, StepOutcome
from paceline.runtime.process_group.world import World
from paceline.strategies import codes
from paceline.strategies.deepspeed import state, zero3
from paceline.strategies.deepspeed.fill_partitions import built_root
from paceline.strategies.deepspeed.partition_views import is_partitioned
from paceline.strategies.deepspeed.start_engine import (
    asking_config,
    averages_gradients,
    engine_config,
    options_of,
    start_engine,
)
from paceline.strategies.model_handle import Handle, ParameterAccess
from paceline.strategies.optimizers.build import build_optimizer, set_learning_rate
from paceline.strategies.strategy import Strategy, evaluating

if TYPE_CHECKING:
    from paceline.plan.plan import Plan
    from paceline.strategies.deepspeed.engine_types import Engine


class Measured:
    """The norm that the engine's optimizer measured in its step, float64, and whether it was refused."""

    def __init__(self, limit: StepLimit, device: torch.device) -> None:
        self._limit, self._device = limit, device
        self.norm = torch.zeros((), dtype=torch.float64, device=device)
        self.refused = torch.zeros((), dtype=torch.bool, device=device)

    def refuses(self, norm: Tensor) -> bool:
        """Note the norm; every rank has the same."""
        self.norm = norm.to(self._device, torch.float64)
        self.refused = self._limit.refuses(self.norm)
        return bool(self.refused)


@contextmanager
def limited(engine: Engine, limit: StepLimit, device: torch.device) -> Iterator[Measured]:
    """Inside the context ``engine.step()`` takes a norm that ``limit`` refuses for an overflow: DeepSpeed
    then clears its gradients and changes nothing.

    Without a scaler an overflow has no other effect; with one the loss scale would be halved, so that rules
    refuse ``training.on_spike: skip`` under fp16.
    """
    optimizer, measured = engine.optimizer, Measured(limit, device)
    if is_partitioned(optimizer):
        of_groups = optimizer._get_norm_groups

        def groups() -> Sequence[Tensor]:
            norms = [torch.as_tensor(norm, device=device) for norm in of_groups()]
            total = torch.linalg.vector_norm(torch.stack([norm.double() for norm in norms]))
            refused = measured.refuses(total / optimizer.loss_scale)
            return [torch.full_like(norm, torch.inf) for norm in norms] if refused else norms

        with replaced(optimizer, _get_norm_groups=groups):
            yield measured
        return
    whole_norm: Callable[[], Tensor] = optimizer.scaled_global_norm

    def norm() -> Tensor:
        total = torch.as_tensor(whole_norm(), device=device)
        refused = measured.refuses(total.double() / optimizer.loss_scale)
        return torch.full_like(total, torch.inf) if refused else total

    with replaced(optimizer, scaled_global_norm=norm):
        yield measured


NOTES_BY_KEY = (
    "flops profile: only matrix products are counted, from shapes: tokens × weight for every layer"
    " (all tokens of the micro-batch, for the head its labelled positions), 2 × length² × width for"
    " attention, per document and as if it were not causal. A layer without latency is computed"
    " inside a kernel of the module around it, which has its time."
)


@contextmanager
def profiled(engine: Engine, root: RootModule, batch: Batch, sequence_ranks: int = 1) -> Iterator[None]:
    """Profile one micro-step inside the context. ``batch`` is this rank's; with ``sequence_ranks`` sharing
    each row it computes its part of the attention heads.
    """
    enabled = bool(engine.flops_profiler_enabled()) and engine.global_rank == 0
    if not enabled or engine.global_steps != engine.flops_profiler_profile_step():
        yield
        return
    profiler = engine.flops_profiler
    profiler.start_profile()
    profiler.start_profile = _nothing  # a second call would wrap everything twice
    seen: list[int] = []
    trunk = root.hf.base_model
    hook = trunk.register_forward_hook(lambda module, args, out: seen.append(out[0].shape[:-1].numel()))
    try:
        yield
    finally:
        hook.remove()
        del profiler.start_profile
    count_products(root, batch, sum(seen), sequence_ranks)
    print(NOTES_BY_KEY, flush=True)


def _nothing(ignore_list: None = None) -> None:
    pass


def count_products(root: RootModule, batch: Batch, tokens: int, sequence_ranks: int = 1) -> None:
    """Set every module's multiply-adds (and FLOP, twice as many) of its own products, in the attributes that
    the profiler reads.
    """
    for module, count in multiply_adds(root, batch, tokens, sequence_ranks).items():
        vars(module).update(__macs__=count, __flops__=2 * count)


@dataclass
class EngineHandle(Handle):
    """``module`` is a DeepSpeed engine, ``optimizer`` the torch optimizer whose parameters it has
    partitioned.

    gradient_bytes  measured before the first step, inside which DeepSpeed frees the gradients
    profile         of the running micro-step, if DeepSpeed's flops profiler is due
    """

    gradient_bytes: int | None = None
    profile: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def engine(self) -> Engine:
        """The DeepSpeed engine."""
        return cast("Engine", self.module)

    def start_profiles(self, sequence_ranks: int) -> None:
        """Start a profile before each forward of the engine for which one is due; ``backward`` ends it."""

        def begin(_: nn.Module, args: tuple[Batch, ...]) -> None:
            self.profile.enter_context(profiled(self.engine, self.root, args[0], sequence_ranks))

        self.module.register_forward_pre_hook(begin)

    def state_bytes(self) -> dict[str, int]:
        """Return the bytes of the partitions; gradients as measured before the first step."""
        if not self.trained or not self.engine.zero_optimization():
            return super().state_bytes()
        return {
            "parameters": state.parameter_bytes(self.engine),
            "gradients": self.gradient_bytes or 0,
            "optimizer": state.optimizer_bytes(self.engine),
        }


class DeepSpeed(Strategy):
    """ZeRO through DeepSpeed's engine, one per trained (or sharded) model."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.stage = options_of(plan).zero_stage
        self._engines: list[Engine] = []
        self._context: ContextParallel | None = None
        # Stages 0 to 2 divide by the data-parallel ranks only, stage 3 by the ranks of each sequence as well.
        averaged = self.data_parallel_size * (plan.mesh.cp if self.stage == 3 else 1)
        # With ``gradient_allreduce_op: sum`` there is no division to make up for.
        self.averaging_factor = float(averaged) if averages_gradients(options_of(plan).config) else 1.0
        self.collective_forward = self.stage == 3
        if self.stage == 3:
            self.access = ParameterAccess(zero3.whole, zero3.own_part)
        self.collective_decoding = self.stage == 3 and not options_of(plan).gather_for_generation

    def shard_batch(self, batch: Batch) -> Batch:
        """Return the batch on the device, or under Ulysses this rank's part of its tokens."""
        return super().shard_batch(
            batch if self._context is None else self._context.split(batch).pinned_as(batch)
        )

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Not used: ``prepare`` starts the engine, which needs the optimizer too."""
        raise NotImplementedError

    # --- life of a model

    def prepare(self, role: Role, build: ModelFactory, optimizer: OptimizerSpec | None) -> Handle:
        """Build the whole model and start the engine on it. A frozen model has an engine only under ZeRO-3,
        which partitions its weights.
        """
        if optimizer is None:
            return self._frozen(role, build) if self.stage == 3 else super().prepare(role, build, None)
        config = engine_config(self.plan, role.value)
        root, fill = built_root(build, self.plan, self.world, config, self.stage)
        check_optimizer(optimizer, self.stage)
        # The engine takes over the optimizer; under Ulysses its groups shard the batch.
        built = build_optimizer(optimizer, root.plain_named_parameters())
        if self.plan.mesh.cp > 1:
            check_context_parallel(root, self.plan.mesh.cp, ULYSSES)
        engine = start_engine(self.world, config, root, built, self.plan.mesh.cp, fill)
        if self.plan.mesh.cp > 1:
            group = engine.mpu.get_sequence_parallel_group()
            self._context = ContextParallel(DeviceMesh.from_group(group, self.world.device.type), ULYSSES)
        # What must be set after the start.
        self._engines.append(engine)
        # The boundary is the window's end (``no_sync``), whatever DeepSpeed counts.
        engine.set_gradient_accumulation_boundary(True)
        if self.stage == 3:
            # The root reads the head's weight directly, past the hooks that would gather it.
            zero3.register_head(root)
        scaler = (
            torch.amp.GradScaler(self.world.device.type)
            if self.plan.precision.scaler and not self.stage
            else None
        )
        root.refresh_compute_weights()
        handle = EngineHandle(role, root, engine, built, scaler)
        if engine.flops_profiler_enabled():
            handle.start_profiles(self.plan.mesh.cp)
        return handle

    def _frozen(self, role: Role, build: ModelFactory) -> Handle:
        """Partition a frozen model with DeepSpeed's ZeRO-3 inference. Each of its forwards is a
        collective.
        """
        config = asking_config(self.plan, role.value)
        root, fill = built_root(build, self.plan, self.world, config, self.stage, frozen=True)
        engine = start_engine(self.world, config, root.eval(), None, self.plan.mesh.cp, fill)
        self._engines.append(engine)
        zero3.register_head(root)
        return EngineHandle(role, root, engine)

    def release(self, handle: Handle) -> None:
        """Destroy the model's engine."""
        if handle.module in self._engines:
            engine = _engine(handle)
            self._engines.remove(engine)
            engine.destroy()

    @contextlib.contextmanager
    def generating(self, handle: Handle) -> Iterator[RootModule]:
        """Yield the whole model. Under ZeRO-3 every rank gathers it, or all ranks run it together; collective
        on entry and exit then.
        """
        gathering: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.stage == 3 and handle.trained:
            taken = zero3.gathered_by_layer if self.collective_decoding else zero3.gathered
            gathering = taken(_engine(handle))
        with evaluating(handle.root), gathering:
            yield handle.root

    def export_state(self, handle: Handle) -> Iterator[Shard]:
        """Yield this rank's partitions as blocks of plain parameters. Collective."""
        return state.export_state(handle, self.world, self.plan.mesh)

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Load this rank's partitions, then update the low-precision parameters."""
        state.import_state(handle, reader, self.world, self.plan.mesh)

    # --- a window

    def zero_grad(self, handle: Handle) -> None:
        """Clear all gradients, also partitions of an abandoned window."""
        _engine(handle).optimizer.zero_grad()

    @contextlib.contextmanager
    def no_sync(self, handle: Handle) -> Iterator[None]:
        """Gradients are reduced as the ZeRO stage requires; the accumulation boundary is the window's end,
        not DeepSpeed's own count.
        """
        engine = _engine(handle)
        engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            engine.set_gradient_accumulation_boundary(True)

    def backward(self, handle: Handle, loss: Tensor) -> None:
        """Run the engine's backward, without its division by the accumulation steps."""
        assert isinstance(handle, EngineHandle)
        scaled = loss if handle.scaler is None else handle.scaler.scale(loss)
        handle.engine.backward(scaled, scale_wrt_gas=False)
        handle.profile.close()

    def finish(self, handle: Handle, *, lr: float, max_grad_norm: float | None) -> StepOutcome:
        """Stage 0: as the base class. Else DeepSpeed clips and steps in one call, and returns the norm before
        clipping.

        Under fp16 it skips a step with an overflow by itself and halves its scale, on all ranks alike.
        """
        assert isinstance(handle, EngineHandle)
        if not self.stage:
            return super().finish(handle, lr=lr, max_grad_norm=max_grad_norm)
        engine = handle.engine
        set_learning_rate(handle.stepper, lr)
        # what DeepSpeed's own step reads; 0 is no clipping
        engine.optimizer.clip_grad = float(max_grad_norm or 0.0)
        # Only now do all gradients exist: ``engine.step`` frees them.
        if handle.gradient_bytes is None:
            handle.gradient_bytes = state.gradient_bytes(engine)
        refused = None
        if self.limit is None:
            engine.step()
        else:
            # DeepSpeed measures the norm inside its step, where the limit has to be asked.
            with limited(engine, self.limit, self.world.device) as measured:
                engine.step()
            refused = measured.refused
        norm = torch.as_tensor(engine.get_global_grad_norm(), dtype=torch.float64, device=self.world.device)
        if refused is not None:  # DeepSpeed reports infinity for a step that it has left out
            norm = torch.where(refused, measured.norm, norm)
        if not self.plan.precision.scaler:
            return StepOutcome.of(norm, None, refused)
        return StepOutcome.of(norm, torch.full_like(norm, float(engine.optimizer.loss_scale)), refused)

    def _step(self, handle: Handle) -> None:
        """Stage 0: call the engine's step, which calls the optimizer's."""
        _engine(handle).step()

    def close(self) -> None:
        """Print the comms logger's summary (collective), and destroy the engines before their process
        group.
        """
        for engine in self._engines:
            if as_object(engine.config.get("comms_logger")).get("enabled"):
                from deepspeed import comm

                comm.log_summary()
            engine.destroy()
        self._engines.clear()


def _engine(handle: Handle) -> Engine:
    assert isinstance(handle, EngineHandle)
    return handle.engine


def check_optimizer(spec: OptimizerSpec, stage: int) -> None:
    """Raise ConfigError for an optimizer whose state does not have the parameter's shape: ZeRO splits flat
    partitions.
    """
    if stage and not supports(spec.name, StateSplit.FLAT):
        raise ConfigError(
            codes.STRATEGY_DEEPSPEED_OPTIMIZER(
                "training.optim", spec.name, stage=stage, splits_why=BUILT[spec.name].splits_why
            )
        )
