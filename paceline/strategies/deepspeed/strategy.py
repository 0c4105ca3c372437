"""DeepSpeed: ZeRO stages 0 to 3, offload to CPU and NVMe, AutoTP and Ulysses, under the same window as every other strategy.

One class for ``deepspeed`` (the stage is its JSON's), ``zero1``, ``zero2`` and ``zero3``; see ``deepspeed_config`` for who owns what.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from paceline.config.optimizers import elementwise
from paceline.core.errors import ConfigError
from paceline.models.context_parallel import ULYSSES, ContextParallel, check_context_parallel
from paceline.protocols.batch import Batch
from paceline.protocols.model import BuildOptions, ModelFactory, RootModule
from paceline.protocols.optimizer import OptimizerSpec
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard, ShardReader
from paceline.protocols.window import StepOutcome
from paceline.runtime.world import World
from paceline.strategies import codes
from paceline.strategies.base import Strategy, evaluating
from paceline.strategies.deepspeed import measure, profile, state, tensor_parallel, zero3
from paceline.strategies.deepspeed.config import asking_config, averages_gradients, engine_config, options_of
from paceline.strategies.deepspeed.start import start_engine
from paceline.strategies.handle import Handle
from paceline.strategies.optimizer import build_optimizer

if TYPE_CHECKING:
    from paceline.plan.plan import Plan


@dataclass
class EngineHandle(Handle):
    """``module`` is a DeepSpeed engine, ``optimizer`` the torch optimizer whose parameters it has partitioned.

    gradient_bytes  as they were before the first step: DeepSpeed frees them inside of it
    profile         of the micro-step that runs, where DeepSpeed's flops profiler is due
    """

    gradient_bytes: int | None = None
    profile: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def engine(self) -> Any:
        """The DeepSpeed engine."""
        return self.module

    def start_profiles(self, sequence_ranks: int) -> None:
        """From now on each forward of the engine begins a profile where one is due; whoever goes backward ends it."""

        def begin(engine: nn.Module, given: tuple[Any, ...]) -> None:
            self.profile.enter_context(profile.profiled(engine, self.root, given[0], sequence_ranks))

        self.module.register_forward_pre_hook(begin)

    def state_bytes(self) -> dict[str, int]:
        """Of the partitions; gradients as they were before the first step."""
        if not self.trained or not self.engine.zero_optimization():
            return super().state_bytes()
        return {
            "parameters": measure.parameter_bytes(self.module),
            "gradients": self.gradient_bytes or 0,
            "optimizer": measure.optimizer_bytes(self.module),
        }


class DeepSpeed(Strategy):
    """ZeRO by DeepSpeed's engine, one a model that is trained (or sharded)."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.stage = options_of(plan).zero_stage
        self._engines: list[Any] = []
        self._context: ContextParallel | None = None
        # Stages 0 to 2 divide by the data-parallel ranks and leave a sequence's ranks a sum; stage 3's reduce-scatter divides by all of them.
        averaged = self.data_parallel_size * (plan.mesh.cp if self.stage == 3 else 1)
        self.averaging_factor = float(averaged) if averages_gradients(options_of(plan).config) else 1.0
        self.collective_forward = self.stage == 3
        self.collective_decoding = self.stage == 3 and not options_of(plan).gather_for_generation

    def shard_batch(self, batch: Batch) -> Batch:
        """Under Ulysses this rank's share of the tokens."""
        local_batch = super().shard_batch(batch)
        return local_batch if self._context is None else self._context.split(local_batch)

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Unused: ``prepare`` starts the engine, which needs the optimizer too."""
        raise NotImplementedError

    # --- life of a model -------------------------------------------------------------------------------------------

    def prepare(self, role: Role, build: ModelFactory, optimizer: OptimizerSpec | None) -> Handle:
        """Build the whole model, start the engine over it (a frozen one has an engine under ZeRO-3 alone, which shares out its weights)."""
        if optimizer is None:
            return self._frozen(role, build) if self.stage == 3 else super().prepare(role, build, None)
        low = self.stage > 0 and self.plan.precision.compute in ("bfloat16", "float16")
        root = build(BuildOptions(fused=self.stage < 3 and self.plan.mesh.tp == 1, engine_casts=low))
        root = root.to(self.world.device)
        check_optimizer(optimizer, self.stage)
        if self.plan.mesh.tp > 1:
            tensor_parallel.prepare_root(root, self.stage)
        config = engine_config(self.plan, role.value)
        built = build_optimizer(optimizer, root.plain_named_parameters())
        if self.plan.mesh.cp > 1:
            check_context_parallel(root, self.plan.mesh.cp, ULYSSES)
        engine = start_engine(self.world, config, root, built, self.plan.mesh.cp)
        if self.plan.mesh.cp > 1:
            group = engine.mpu.get_sequence_parallel_group()
            self._context = ContextParallel(DeviceMesh.from_group(group, self.world.device.type), ULYSSES)
        self._engines.append(engine)
        engine.set_gradient_accumulation_boundary(True)
        if self.stage == 3:
            zero3.register_head(root)
        scaler = torch.amp.GradScaler(self.world.device.type) if self.plan.precision.scaler and not self.stage else None
        root.refresh_compute_weights()
        handle = EngineHandle(role, root, engine, built, scaler)
        if engine.flops_profiler_enabled():
            handle.start_profiles(self.plan.mesh.cp)
        return handle

    def _frozen(self, role: Role, build: ModelFactory) -> Handle:
        """A model that is only asked, in partitions: DeepSpeed's own ZeRO-3 inference. Each forward is a collective."""
        low = self.plan.precision.compute in ("bfloat16", "float16")
        root = build(BuildOptions(fused=False, engine_casts=low)).to(self.world.device)
        root.requires_grad_(False).eval()
        engine = start_engine(self.world, asking_config(self.plan, role.value), root, None)
        self._engines.append(engine)
        zero3.register_head(root)
        return EngineHandle(role, root, engine)

    def release(self, handle: Handle) -> None:
        """Its engine goes with it."""
        if handle.module in self._engines:
            engine: Any = handle.module
            self._engines.remove(engine)
            engine.destroy()

    @contextlib.contextmanager
    def generating(self, handle: Handle) -> Iterator[RootModule]:
        """The whole model: under ZeRO-3 every rank gathers it, or all go through it together. Collective at both ends there."""
        whole: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.stage == 3 and handle.trained:
            taken = zero3.gathered_by_layer if self.collective_decoding else zero3.gathered
            whole = taken(handle.module)
        with evaluating(handle.root), whole:
            yield handle.root

    def export_state(self, handle: Handle) -> Iterator[Shard]:
        """Each rank's partitions as blocks of plain parameters. Collective."""
        return state.export_state(handle, self.world, self.plan.mesh)

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Each rank reads its own partitions; low-precision parameters follow."""
        state.import_state(handle, reader, self.world, self.plan.mesh)

    # --- a window --------------------------------------------------------------------------------------------------

    def zero_grad(self, handle: Handle) -> None:
        """Partitions of an abandoned window, too."""
        _engine(handle).optimizer.zero_grad()

    @contextlib.contextmanager
    def no_sync(self, handle: Handle) -> Iterator[None]:
        """Gradients are reduced as DeepSpeed's stage does; the boundary is where the window ends, whatever it counts itself."""
        engine = _engine(handle)
        engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            engine.set_gradient_accumulation_boundary(True)

    def backward(self, handle: Handle, loss: Tensor) -> None:
        """Through the engine, without its division by the accumulation steps."""
        assert isinstance(handle, EngineHandle)
        scaled = loss if handle.scaler is None else handle.scaler.scale(loss)
        handle.engine.backward(scaled, scale_wrt_gas=False)
        handle.profile.close()

    def finish(self, handle: Handle, *, lr: float, max_grad_norm: float | None) -> StepOutcome:
        """Stage 0: as the base class. Else norm, clipping and step are one call of DeepSpeed's, which tells the norm before clipping; under fp16 it
        skips an overflow by itself and halves its own scale, on all ranks alike."""
        assert isinstance(handle, EngineHandle)
        if not self.stage:
            return super().finish(handle, lr=lr, max_grad_norm=max_grad_norm)
        engine = handle.engine
        for group in handle.stepper.param_groups:
            group["lr"] = lr
        engine.optimizer.clip_grad = float(max_grad_norm or 0.0)
        if handle.gradient_bytes is None:
            handle.gradient_bytes = measure.gradient_bytes(engine)
        engine.step()
        norm = torch.as_tensor(engine.get_global_grad_norm(), dtype=torch.float64, device=self.world.device)
        if not self.plan.precision.scaler:
            return StepOutcome(norm)
        return StepOutcome(norm, torch.full_like(norm, float(engine.optimizer.loss_scale)))

    def _step(self, handle: Handle) -> None:
        """Stage 0: the engine's, around the optimizer's."""
        _engine(handle).step()

    def close(self) -> None:
        """Print what the comms logger has counted (collective), and let the engines go before their process group does."""
        for engine in self._engines:
            if (engine.config.get("comms_logger") or {}).get("enabled"):
                from deepspeed import comm

                comm.log_summary()
            engine.destroy()
        self._engines.clear()


def _engine(handle: Handle) -> Any:
    assert isinstance(handle, EngineHandle)
    return handle.engine


def check_optimizer(spec: OptimizerSpec, stage: int) -> None:
    """Raise ConfigError for an optimizer whose state is no array of the parameter's size: ZeRO cuts flat partitions."""
    if stage and not elementwise(spec.name):
        raise ConfigError(
            codes.STRATEGY_DEEPSPEED_OPTIMIZER(
                f"ZeRO-{stage} cuts the optimizer's state into flat partitions, and {spec.name}'s rows and columns are lost in them",
                "training.optim",
                spec.name,
                "adamw_torch_fused, sgd, rmsprop or adagrad; or training.distributed_strategy: fsdp",
            )
        )
