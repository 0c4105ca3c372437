"""DeepSpeed: ZeRO stages 0 to 3, offload to CPU and NVMe, AutoTP and Ulysses, under the same window as every other strategy.

One class for ``deepspeed`` (the stage is its JSON's), ``zero1``, ``zero2`` and ``zero3``; see ``deepspeed_config`` for who owns what.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from paceline.config.optimizers import elementwise
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.models.context_parallel import ULYSSES, ContextParallel, check_context_parallel
from paceline.runtime.world import World
from paceline.seam.algorithm import Objective
from paceline.seam.batch import Batch
from paceline.seam.model import BuildOptions, ModelFactory
from paceline.seam.optimizer import OptimizerSpec
from paceline.seam.roles import Role
from paceline.seam.shard import Shard, ShardReader
from paceline.seam.window import StepResult
from paceline.strategies import (
    deepspeed_measure,
    deepspeed_profile,
    deepspeed_state,
    deepspeed_tensor_parallel,
    deepspeed_zero3,
)
from paceline.strategies.base import Handles, Strategy, add_evaluation, evaluating
from paceline.strategies.deepspeed_config import asking_config, averages_gradients, engine_config, zero_stage
from paceline.strategies.deepspeed_start import start_engine
from paceline.strategies.handle import Handle
from paceline.strategies.optimizer import build_optimizer

if TYPE_CHECKING:
    from paceline.plan.plan import Plan


class DeepSpeed(Strategy):
    """``handle.module`` is the DeepSpeed engine; ``handle.optimizer`` the torch optimizer whose parameters it has partitioned."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.stage = zero_stage(plan)
        self._engines: list[Any] = []
        self._context: ContextParallel | None = None
        self._gradient_bytes: dict[
            Role, int
        ] = {}  # as they were before the first step: DeepSpeed frees them inside of it
        self._averages = averages_gradients(plan.engine.get("config") or {})

    @property
    def averaging_factor(self) -> float:
        """Over how many ranks DeepSpeed averages: those of other rows; at stage 3 those of the same sequence as well.

        Stages 0 to 2 divide by the data-parallel ranks and leave a sequence's ranks a sum; stage 3's reduce-scatter divides by all of them.
        """
        if not self._averages:
            return 1.0
        return float(self.data_parallel_size * (self.plan.mesh.cp if self.stage == 3 else 1))

    def place(self, batch: Batch) -> Batch:
        """Under Ulysses this rank's share of the tokens."""
        placed = super().place(batch)
        return placed if self._context is None else self._context.split(placed)

    def wrap(self, role: Role, root: nn.Module) -> nn.Module:
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
            deepspeed_tensor_parallel.prepare_root(root, self.stage)
        config = engine_config(self.plan, role.value)
        built = build_optimizer(optimizer, root.plain_named_parameters())  # type: ignore[operator]
        if self.plan.mesh.cp > 1:
            check_context_parallel(root, self.plan.mesh.cp, ULYSSES)
        engine = start_engine(self.world, config, root, built, self.plan.mesh.cp)
        if self.plan.mesh.cp > 1:
            group = engine.mpu.get_sequence_parallel_group()
            self._context = ContextParallel(DeviceMesh.from_group(group, self.world.device.type), ULYSSES)
        self._engines.append(engine)
        if self.stage == 3:
            deepspeed_zero3.register_head(root)
        scaler = torch.amp.GradScaler(self.world.device.type) if self.plan.precision.scaler and not self.stage else None
        root.refresh_compute_weights()  # type: ignore[operator]
        return Handle(role, root, engine, built, scaler)

    def _frozen(self, role: Role, build: ModelFactory) -> Handle:
        """A model that is only asked, in partitions: DeepSpeed's own ZeRO-3 inference. Each forward is a collective."""
        low = self.plan.precision.compute in ("bfloat16", "float16")
        root = build(BuildOptions(fused=False, engine_casts=low)).to(self.world.device)
        root.requires_grad_(False).eval()
        engine = start_engine(self.world, asking_config(self.plan, role.value), root, None)
        self._engines.append(engine)
        deepspeed_zero3.register_head(root)
        return Handle(role, root, engine)

    def release(self, handle: Handle) -> None:
        """Its engine goes with it."""
        if handle.module in self._engines:
            engine: Any = handle.module
            self._engines.remove(engine)
            engine.destroy()

    def zero_grad(self, handle: Handle) -> None:
        """Partitions of an abandoned window, too."""
        engine: Any = handle.module
        engine.optimizer.zero_grad()

    @property
    def generates_together(self) -> bool:
        """Under ZeRO-3, where the plan finds no room for the whole model."""
        return self.stage == 3 and not self.plan.engine.get("gather_for_generation", True)

    @contextlib.contextmanager
    def generating(self, handle: Handle) -> Iterator[nn.Module]:
        """The whole model: under ZeRO-3 every rank gathers it, or all go through it together. Collective at both ends there."""
        whole: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.stage == 3 and handle.trained:
            taken = deepspeed_zero3.in_turns if self.generates_together else deepspeed_zero3.gathered
            whole = taken(handle.module)
        with evaluating(handle.root), whole:
            yield handle.root

    def export_state(self, handle: Handle) -> Iterator[Shard]:
        """Each rank's partitions as blocks of plain parameters. Collective."""
        return deepspeed_state.export_state(handle, self.world, self.plan.mesh)

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Each rank reads its own partitions; low-precision parameters follow."""
        deepspeed_state.import_state(handle, reader, self.world, self.plan.mesh)

    # --- training --------------------------------------------------------------------------------------------------

    def train_window(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        algorithm: Objective,
        *,
        lr: float,
        max_grad_norm: float | None,
        generator_seed: Callable[[int], int] | None = None,
    ) -> StepResult:
        """As the base class. From stage 1 on norm, clipping and step are one call of DeepSpeed's, made where the norm is asked for."""
        for role in algorithm.trains:
            for group in handles[role].optimizer.param_groups:  # type: ignore[union-attr]
                group["lr"] = lr
            if self.stage:
                engine: Any = handles[role].module
                engine.optimizer.clip_grad = float(max_grad_norm or 0.0)
        return super().train_window(
            handles, micro_batches, algorithm, lr=lr, max_grad_norm=max_grad_norm, generator_seed=generator_seed
        )

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
        """Gradients are reduced as DeepSpeed's stage does; the boundary is where the window ends, whatever it counts itself."""
        engine: Any = handle.module
        engine.set_gradient_accumulation_boundary(last)
        with deepspeed_profile.profiled(engine, handle.root, batch, self.plan.mesh.cp):
            super().microstep(handle, batch, algorithm, scales, sums, last=last)

    def backward(self, handle: Handle, loss: Tensor) -> None:
        """Through the engine, without its division by the accumulation steps."""
        engine: Any = handle.module
        engine.backward(loss if handle.scaler is None else handle.scaler.scale(loss), scale_wrt_gas=False)

    def grad_norm(self, handle: Handle) -> Tensor:
        """Stage 0: as the base class. Else DeepSpeed clips and steps here, unless the norm is not finite, and tells the norm before clipping."""
        if not self.stage:
            return super().grad_norm(handle)
        engine: Any = handle.module
        if handle.role not in self._gradient_bytes:
            self._gradient_bytes[handle.role] = deepspeed_measure.gradient_bytes(engine)
        engine.step()
        norm = engine.get_global_grad_norm()
        return torch.as_tensor(norm, dtype=torch.float64, device=self.world.device)

    def step(self, handle: Handle, norm: Tensor, *, lr: float, max_grad_norm: float | None, apply: bool) -> None:
        """Stage 0: as the base class, by the engine's step. Else it was made with the norm."""
        if self.stage:
            return
        engine: Any = handle.module
        if apply:
            if max_grad_norm and float(norm) + 1e-6 > max_grad_norm:
                torch.nn.utils.clip_grads_with_norm_(handle.parameters(), max_grad_norm, norm)
            engine.step()
            handle.root.refresh_compute_weights()  # type: ignore[operator]
        if handle.scaler is not None:
            handle.scaler.update()

    def _skip_reason(self, trained: Sequence[Handle], finite: bool) -> str | None:
        """Under fp16 DeepSpeed skips an overflow by itself and halves its own scale, on all ranks alike."""
        own = self.stage > 0 and self.plan.precision.scaler
        return "overflow" if own and not finite else super()._skip_reason(trained, finite)

    def _extras(self, trained: Sequence[Handle], grad_norms: Mapping[Role, float]) -> dict[str, float]:
        extras = super()._extras(trained, grad_norms)
        if self.stage and self.plan.precision.scaler:
            for handle in trained:
                engine: Any = handle.module
                name = f"loss_scale/{handle.role.value}" if len(trained) > 1 else "loss_scale"
                extras[name] = float(engine.optimizer.loss_scale)
        return extras

    def evaluated(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective, sums: dict[str, Tensor]
    ) -> Iterator[Batch]:
        """Under ZeRO-3 every forward is a collective: ranks with fewer micro-batches go on with blank ones until all are through."""
        if self.stage < 3:
            yield from super().evaluated(handles, micro_batches, algorithm, sums)
            return
        waiting = iter(micro_batches)
        batch = next(waiting)
        real = True
        while True:
            placed = self.informed(handles, self.place(batch if real else deepspeed_zero3.blank(batch)), algorithm)
            for role in algorithm.trains:
                outputs = handles[role].root(placed, algorithm.ask(role, training=False))
                add_evaluation(algorithm, role, outputs, placed, sums)
            if real:
                yield batch
            following = next(waiting, None)
            if not self.world.any(following is not None):
                return
            real, batch = following is not None, following or batch

    def state_bytes(self, handle: Handle) -> dict[str, int]:
        """Of the partitions; gradients as they were before the first step."""
        if not self.stage or not handle.trained:
            return super().state_bytes(handle)
        return {
            "parameters": deepspeed_measure.parameter_bytes(handle.module),
            "gradients": self._gradient_bytes.get(handle.role, 0),
            "optimizer": deepspeed_measure.optimizer_bytes(handle.module),
        }

    def close(self) -> None:
        """Print what the comms logger has counted (collective), and let the engines go before their process group does."""
        for engine in self._engines:
            if (engine.config.get("comms_logger") or {}).get("enabled"):
                from deepspeed import comm

                comm.log_summary()
            engine.destroy()
        self._engines.clear()


def check_optimizer(spec: OptimizerSpec, stage: int) -> None:
    """Raise ConfigError for an optimizer whose state is no array of the parameter's size: ZeRO cuts flat partitions."""
    if stage and not elementwise(spec.name):
        raise ConfigError(
            Diagnostic(
                "strategy.deepspeed_optimizer",
                f"ZeRO-{stage} cuts the optimizer's state into flat partitions, and {spec.name}'s rows and columns are lost in them",
                "training.optim",
                spec.name,
                "adamw_torch_fused, sgd, rmsprop or adagrad; or training.distributed_strategy: fsdp",
            )
        )
