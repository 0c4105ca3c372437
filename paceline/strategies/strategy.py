"""Strategy: how models are trained on the mesh, called by a runner for each window; and with one process."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.plan.plan import OptimizerSpec, Plan
from paceline.plan.strategies.spec import strategy_spec
from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.model import ModelFactory, RootModule
from paceline.protocols.roles import Output, Role
from paceline.protocols.shard import Shard, ShardReader
from paceline.protocols.window import EvalSums, StepLimit, StepOutcome, UnreadResult
from paceline.runtime.device.device import sum_dtype
from paceline.runtime.process_group.world import World
from paceline.strategies import codes, replicated_state
from paceline.strategies.grad_norm import clipping_and_skipping, scale_of, skips_on_device, squares
from paceline.strategies.model_handle import Handle, Handles, ParameterAccess
from paceline.strategies.optimizers.build import build_optimizer, set_learning_rate
from paceline.strategies.replicated_state import ReadOnce

if TYPE_CHECKING:
    from paceline.plan.plan import Plan
    from paceline.strategies.window.nonfinite_watch import NonFiniteWatch


class Strategy(ABC):
    """One per run, built from the World and the Plan; the conformance suite requires the same behaviour of
    every subclass.

    A subclass must implement ``wrap``; everything else has a default for strategies that keep whole
    parameters on every rank. Properties of the whole run are set in ``__init__`` and may be replaced by a
    subclass:

    options              the user's ``training.strategy_options``, with the defaults of the strategy's spec
    data_parallel_rank   this rank's data-parallel rank (equal within a tp, cp or pp group)
    data_parallel_size   the number of data-parallel ranks, which read different rows
    loss_copies          how many ranks compute the same loss sums: each rank of a tp group has the whole sum,
                         each rank of a cp group a part of it
    averaging_factor     size of the group over which the engine averages gradients: a summed loss is
                         multiplied by it (contract 2)
    collective_forward   each forward is a collective: every rank must make the same number
    collective_decoding  so is each forward inside ``generating``
    access               how parameters are read and changed of which ranks hold parts
    limit                above which ``finish`` makes no step, by the same values on each rank; None: no limit
    """

    runner: ClassVar[type[Runner] | None] = None  # None: ``strategies.window.runner.WindowRunner``

    can_generate: ClassVar[bool] = True  # whether ``generating`` is supported

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        # The spec's defaults come first, so that a subclass finds every option that it has declared.
        declared = strategy_spec(plan.strategy).strategy_options
        self.options: JsonObject = {**declared, **plan.strategy_options}
        self.data_parallel_rank = plan.mesh.data_parallel_rank(world.rank)
        self.data_parallel_size = plan.mesh.data_parallel_size
        # Under tp each rank computes the loss of the same tokens: a sum over all ranks has it tp times.
        self.loss_copies = plan.mesh.tp
        # DDP and most engines divide summed gradients by this size. The loss is multiplied by it first, so
        # that a step uses the gradient of (global sum) / (global weight), whatever tokens a rank has.
        self.averaging_factor = float(self.data_parallel_size)
        self.collective_forward = False
        self.collective_decoding = False
        self.access = ParameterAccess()
        self.limit: StepLimit | None = None

    # --- life of a model

    @abstractmethod
    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Return the module to call in training; gradients of a synchronized backward are averaged over
        ``averaging_factor`` ranks.
        """

    def prepare(self, role: Role, build: ModelFactory, optimizer: OptimizerSpec | None) -> Handle:
        """Build, place and wrap the model of a role; ``optimizer=None`` freezes it."""
        root = build().to(self.world.device)
        if optimizer is None:
            root.requires_grad_(False).eval()
            return Handle(role, root, root)
        built = self._make_optimizer(optimizer, root)
        scaler = torch.amp.GradScaler(self.world.device.type) if self.plan.precision.scaler else None
        module = self.wrap(role, root)
        root.refresh_compute_weights()  # wrapping may have broadcast rank 0's parameters
        return Handle(role, root, module, built, scaler)

    def _make_optimizer(self, spec: OptimizerSpec, root: RootModule) -> torch.optim.Optimizer:
        """Return the optimizer over the root's trained parameters, before wrapping; its ``state`` holds the
        moments that this rank keeps.
        """
        return build_optimizer(spec, root.plain_named_parameters())

    def warm_up(self, handle: Handle, batch: Batch, algorithm: Objective) -> None:
        """Contract 9: bring the engine into the state it has after its first step, without side effects. A
        no-op by default.
        """

    def release(self, handle: Handle) -> None:
        """Free a frozen model that is no longer needed; the caller drops the handle."""

    def close(self) -> None:
        """Free engines before the process group is destroyed (contract 10)."""

    # --- a window

    def shard_batch(self, batch: Batch) -> Batch:
        """Return this rank's part of a micro-batch, on its device: all of it unless sequences are sharded."""
        return batch.to(self.world.device)

    def zero_grad(self, handle: Handle) -> None:
        """Clear the gradients of the last window."""
        handle.stepper.zero_grad(set_to_none=True)

    def no_sync(self, handle: Handle) -> contextlib.AbstractContextManager[None]:
        """Return the context for forward and backward of every micro-step but the last."""
        return contextlib.nullcontext()

    def backward(self, handle: Handle, loss: Tensor) -> None:
        """Run the backward of one micro-step."""
        # fp16 gradients underflow below 6e-8; the scaled loss lifts them, and ``_grad_norm`` divides again.
        torch.autograd.backward(loss if handle.scaler is None else handle.scaler.scale(loss))

    def finish(self, handle: Handle, *, lr: float, max_grad_norm: float | None) -> StepOutcome:
        """After a window's last backward: compute the global norm, clip as ``torch.nn.utils.clip_grad_norm_``
        does, make the optimizer step, and refresh low-precision copies. Collective.

        ``max_grad_norm`` None or 0 does not clip. If the norm is not finite, or ``limit`` refuses it, no step
        is made.
        """
        # The schedule is a function of the step that the trainer passes in, so no scheduler state is saved.
        set_learning_rate(handle.stepper, lr)
        # Unscale and measure; every rank takes the same decision from the same norm.
        norm = self._grad_norm(handle)
        refused = None if self.limit is None else self.limit.refuses(norm)
        # The host does not read the norm: a fused optimizer decides on the device, and kernels stay
        # enqueued.
        if skips_on_device(handle.stepper, norm):
            with clipping_and_skipping(handle.stepper, norm, max_grad_norm, refused):
                self._step(handle)
            handle.root.refresh_compute_weights()
        # Here the host waits for the norm. A step with inf or nan would write them into every weight.
        elif math.isfinite(length := float(norm)) and (refused is None or not bool(refused)):
            # else torch would multiply every gradient by 1
            if max_grad_norm and length + 1e-6 > max_grad_norm:
                torch.nn.utils.clip_grads_with_norm_(handle.parameters(), max_grad_norm, norm)
            self._step(handle)
            handle.root.refresh_compute_weights()
        if handle.scaler is None:
            return StepOutcome.of(norm, None, refused)
        # After a step with an overflow too: that is when the scale is halved.
        handle.scaler.update()
        return StepOutcome.of(norm, scale_of(handle.scaler, norm), refused)

    def _grad_norm(self, handle: Handle) -> Tensor:
        """Return the global 2-norm of the role's gradients (unscaled here if there is a scaler): float64, on
        the device.

        Every rank has whole gradients; all ranks use rank 0's norm, so that all clip by the same bits.
        """
        if handle.scaler is not None:
            handle.scaler.unscale_(handle.stepper)
        grads = [p.grad for p in handle.parameters() if p.grad is not None]
        norm = torch.zeros((), dtype=sum_dtype(self.world.device), device=self.world.device)
        # Sums on two ranks may differ in the last bit although their gradients are equal (other kernels,
        # other block sizes). One rank's norm, sent as a sum with zeros, makes all clip alike.
        if grads and self.world.is_main:
            norm = squares(grads).sum().sqrt().to(norm)
        return self.world.all_reduce_tensor(norm)

    def _step(self, handle: Handle) -> None:
        handle.stepper.step()

    # --- without gradients

    def inference(self, handle: Handle) -> contextlib.AbstractContextManager[None]:
        """Eval mode without gradients inside the context; afterwards the model is as before."""
        return evaluating(handle.root)

    @contextlib.contextmanager
    def generating(self, handle: Handle) -> Iterator[RootModule]:
        """Yield the whole model, in eval mode and without gradients, for decoding."""
        with handle.averaged(), evaluating(handle.root):
            yield handle.root

    # --- a checkpoint

    def export_state(self, handle: Handle) -> Iterator[Shard]:
        """Yield this rank's part of the model's and the optimizer's state under plain names; over all ranks
        every piece occurs once.
        """
        return replicated_state.export_state(handle, self.world.rank, self.world.world_size)

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Load what ``export_state`` saved, bit for bit: all ranks hold all of it, one reads a tensor."""
        replicated_state.import_state(handle, ReadOnce(reader, self.world))


class Runner(Protocol):
    """Runs windows through a strategy; see ``strategies.window.runner.WindowRunner``."""

    @property
    def strategy(self) -> Strategy: ...

    def __init__(self, strategy: Strategy) -> None: ...

    def start_window(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        algorithm: Objective,
        *,
        lr: float,
        max_grad_norm: float | None,
        generator_seed: Callable[[int], int] | None = None,
    ) -> UnreadResult: ...

    def repeat(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        algorithm: Objective,
        index: int,
        generator_seed: Callable[[int], int],
    ) -> NonFiniteWatch: ...

    def window_means(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective
    ) -> Mapping[str, float]: ...

    def eval_window(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective
    ) -> EvalSums: ...

    def forward_no_grad(
        self, handles: Handles, role: Role, local_batch: Batch, required: frozenset[Output]
    ) -> dict[str, Tensor]: ...


@contextlib.contextmanager
def evaluating(root: nn.Module) -> Iterator[None]:
    """Eval mode without gradients inside the context; the previous mode is restored."""
    was_training = root.training
    root.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        root.train(was_training)


class Single(Strategy):
    """Training in one process, without communication: the reference for every other strategy."""

    def __init__(self, world: World, plan: Plan) -> None:
        if world.world_size != 1:
            raise ConfigError(
                codes.STRATEGY_SINGLE_WORLD("training.distributed_strategy", f"{world.world_size} processes")
            )
        super().__init__(world, plan)

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Return the root itself."""
        return root
