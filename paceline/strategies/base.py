"""Strategy: how models are trained on the mesh. The window is the unit (contract 3), sums and weights the arithmetic (contract 2)."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.runtime.world import World
from paceline.seam.algorithm import Objective
from paceline.seam.batch import Batch
from paceline.seam.model import ModelFactory
from paceline.seam.optimizer import OptimizerSpec
from paceline.seam.roles import Ask, Role
from paceline.seam.shard import Shard, ShardReader
from paceline.seam.window import StepResult
from paceline.strategies import measure, state
from paceline.strategies.handle import Handle
from paceline.strategies.norms import squares
from paceline.strategies.optimizer import build_optimizer

if TYPE_CHECKING:
    from paceline.plan.plan import Plan

Handles = Mapping[Role, Handle]


@dataclass(frozen=True)
class EvalSums:
    """What an evaluation window gave, summed over all ranks.

    sums     by loss term (summed losses) and by metric name (``correct/nll``)
    weights  by loss term
    rows     real rows (fillers not counted)
    """

    sums: Mapping[str, float]
    weights: Mapping[str, int]
    rows: int


class Strategy(ABC):
    """One per run, built from the World and the Plan; the conformance suite holds every subclass to the same behaviour.

    A subclass must say how a module is wrapped; everything else has a default built from ``microstep``, ``backward`` and
    ``step``, for strategies that keep whole parameters on every rank. ``options`` is the user's ``training.strategy_options``.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.options: dict[str, object] = dict(plan.config.get("training", {}).get("strategy_options") or {})

    # --- what a subclass gives -------------------------------------------------------------------------------------

    @abstractmethod
    def wrap(self, role: Role, root: nn.Module) -> nn.Module:
        """The module to call in training; gradients of a synchronised backward are averaged over ``data_parallel_size``."""

    @property
    def data_parallel_rank(self) -> int:
        """This rank's coordinate among those that see different rows."""
        return self.plan.mesh.data_parallel_rank(self.world.rank)

    @property
    def data_parallel_size(self) -> int:
        """How many ranks see different rows."""
        return self.plan.mesh.data_parallel_size

    @property
    def loss_copies(self) -> int:
        """How many ranks compute the same loss sums: members of a tp group each have the whole sum, members of a cp group a part of it."""
        return self.plan.mesh.tp

    def place(self, batch: Batch) -> Batch:
        """What this rank computes of a micro-batch, on its device: all of it, unless the sequence is shared out."""
        return batch.to(self.world.device)

    @property
    def averaging_factor(self) -> float:
        """Size of the group over which the engine averages gradients: what a summed loss is multiplied by (contract 2)."""
        return float(self.data_parallel_size)

    def no_sync(self, handle: Handle) -> contextlib.AbstractContextManager[object]:
        """Entered around forward and backward of every micro-step but the last."""
        return contextlib.nullcontext()

    def zero_grad(self, handle: Handle) -> None:
        """Forget the gradients of the last window."""
        assert handle.optimizer is not None
        handle.optimizer.zero_grad(set_to_none=True)

    # --- life of a model -------------------------------------------------------------------------------------------

    def prepare(self, role: Role, build: ModelFactory, optimizer: OptimizerSpec | None) -> Handle:
        """Build, place and wrap the model of a role; ``optimizer=None`` freezes it."""
        root = build().to(self.world.device)
        if optimizer is None:
            root.requires_grad_(False).eval()
            return Handle(role, root, root)
        built = build_optimizer(optimizer, root.plain_named_parameters())  # type: ignore[operator]
        scaler = torch.amp.GradScaler(self.world.device.type) if self.plan.precision.scaler else None
        module = self.wrap(role, root)
        root.refresh_compute_weights()  # type: ignore[operator] # wrapping may have brought rank 0's parameters here
        return Handle(role, root, module, built, scaler)

    def warm_up(self, handle: Handle, batch: Batch, algorithm: Objective) -> None:
        """Contract 9: bring the engine into the state it has after its first step, leaving no trace. Nothing to do by default."""

    @property
    def generates_together(self) -> bool:
        """Whether each forward inside ``generating`` is a collective: then all ranks make equally many."""
        return False

    @contextlib.contextmanager
    def generating(self, handle: Handle) -> Iterator[nn.Module]:
        """The whole model, in eval mode and without gradients, for decoding."""
        with evaluating(handle.root):
            yield handle.root

    def export_state(self, handle: Handle) -> Iterator[Shard]:
        """This rank's share of the model's and the optimizer's state under plain names; all ranks' shares together are the whole, each piece once."""
        return state.export_state(handle, self.world.rank, self.world.world_size)

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """The inverse, bit for bit: each rank reads everything it holds."""
        state.import_state(handle, reader)

    def state_bytes(self, handle: Handle) -> dict[str, int]:
        """Bytes of ``parameters``, ``gradients`` and ``optimizer`` that this rank holds, measured (padding included)."""
        return measure.state_bytes(handle)

    def close(self) -> None:
        """Let go of engines before the process group ends (contract 10)."""

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
        """One optimizer step over ``micro_batches`` (as many on every rank). Collective; the result is equal on all ranks.

        The loss is sum over terms of (sum over the global window) / W, W the global weight of the term. ``max_grad_norm``
        None or 0 does not clip (the norm is reported all the same). ``generator_seed(j)`` seeds torch before micro-step j.

        Numbers that are not finite: under fp16 the step is skipped as ``overflow`` and the scale halved (``grad_norm`` is then inf or nan);
        else the parameters are left as they were and the values are returned: raising is the caller's.
        """
        weights, tokens = self.global_weights(micro_batches, algorithm)
        if not any(weights.values()):
            return StepResult(dict.fromkeys(weights, 0.0), weights, None, "no_labels", tokens)
        scales = {term: self.averaging_factor / w if w else 0.0 for term, w in weights.items()}
        trained = [handles[role] for role in algorithm.trains]
        names = [*sorted(weights), *algorithm.watched]
        sums = {name: torch.zeros((), dtype=torch.float64, device=self.world.device) for name in names}
        for handle in trained:
            handle.module.train()
            self.zero_grad(handle)
        self.accumulate(handles, micro_batches, algorithm, scales, sums, generator_seed)
        norms = {handle.role: self.grad_norm(handle) for handle in trained}
        means, grad_norms = self.global_results(sums, norms, weights)
        losses = {term: means[term] for term in sorted(weights)}
        finite = all(map(math.isfinite, [*losses.values(), *grad_norms.values()]))
        for handle in trained:
            norm = torch.full_like(norms[handle.role], grad_norms[handle.role])
            self.step(handle, norm, lr=lr, max_grad_norm=max_grad_norm, apply=finite)
        return StepResult(
            losses,
            weights,
            _joint(grad_norms),
            self._skip_reason(trained, finite),
            tokens,
            {
                **self._extras(trained, grad_norms),
                **algorithm.summary({_metric(name): means[name] for name in algorithm.watched}),
            },
        )

    def accumulate(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        algorithm: Objective,
        scales: Mapping[str, float],
        sums: dict[str, Tensor],
        generator_seed: Callable[[int], int] | None,
    ) -> None:
        """Forward and backward of every micro-batch, gradients synchronised at the end; an engine with an order of its own (a pipeline) overrides it."""
        for j, batch in enumerate(micro_batches):
            if generator_seed is not None:
                torch.manual_seed(generator_seed(j))
            placed = self.informed(handles, self.place(batch), algorithm)
            for role in algorithm.trains:
                self.microstep(handles[role], placed, algorithm, scales, sums, last=j == len(micro_batches) - 1)

    def informed(self, handles: Handles, placed: Batch, algorithm: Objective) -> Batch:
        """A placed micro-batch with what the algorithm's consulted models say of it."""
        for role in algorithm.consulted:
            outputs = self.asked(handles, role, placed, algorithm.ask(role, training=False))
            placed = algorithm.informed(role, outputs, placed)
        return placed

    def asked(self, handles: Handles, role: Role, placed: Batch, ask: frozenset[Ask]) -> dict[str, Tensor]:
        """What the model of ``role`` answers, in eval mode without gradients; one that is not there is the policy without its adapter."""
        handle = handles.get(role, handles[Role.POLICY])
        bare = contextlib.nullcontext() if role in handles else handle.root.without_adapter()  # type: ignore[operator]
        with evaluating(handle.root), bare:
            return self.evaluation_module(handle)(placed, ask)  # type: ignore[no-any-return]

    def release(self, handle: Handle) -> None:
        """Let go of a frozen model that is no longer needed; the caller forgets the handle."""

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
        """Forward and backward of one micro-batch of one role; adds each term's sum to ``sums``. Gradients are synchronised in the last one only."""
        with contextlib.nullcontext() if last else self.no_sync(handle):
            outputs = handle.module(batch, algorithm.ask(handle.role, training=True))
            terms = algorithm.losses(handle.role, outputs, batch)
            for term, value in terms.items():
                sums[term] += value.detach()
            self.watch(handle.role, outputs, batch, algorithm, sums)
            total = torch.stack([value * scales[term] for term, value in terms.items()]).sum()
            self.backward(handle, total)

    def watch(
        self, role: Role, outputs: Mapping[str, Tensor], batch: Batch, algorithm: Objective, sums: dict[str, Tensor]
    ) -> None:
        """Adds the metrics that are counted in training."""
        if algorithm.watched:
            found = algorithm.metrics(role, outputs, batch)
            for name in algorithm.watched:
                if name in found:
                    sums[name] += found[name].detach().to(self.world.device)

    def backward(self, handle: Handle, loss: Tensor) -> None:
        """The backward of one micro-step."""
        (loss if handle.scaler is None else handle.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def grad_norm(self, handle: Handle) -> Tensor:
        """The global 2-norm of the role's gradients (unscaled), before clipping; a float64 scalar on the device."""
        if handle.scaler is not None:
            assert handle.optimizer is not None
            handle.scaler.unscale_(handle.optimizer)
        grads = [p.grad for p in handle.parameters() if p.grad is not None]
        return squares(grads).sum().sqrt() if grads else torch.zeros((), dtype=torch.float64, device=self.world.device)

    def step(self, handle: Handle, norm: Tensor, *, lr: float, max_grad_norm: float | None, apply: bool) -> None:
        """Clip as ``torch.nn.utils.clip_grad_norm_`` does, step, refresh the compute copies; ``apply=False`` only updates the scaler."""
        assert handle.optimizer is not None
        for group in handle.optimizer.param_groups:
            group["lr"] = lr
        if apply:
            if max_grad_norm and float(norm) + 1e-6 > max_grad_norm:  # else torch would multiply every gradient by 1
                torch.nn.utils.clip_grads_with_norm_(handle.parameters(), max_grad_norm, norm)
            handle.optimizer.step()
            handle.root.refresh_compute_weights()  # type: ignore[operator]
        if handle.scaler is not None:
            handle.scaler.update()

    # --- evaluation ------------------------------------------------------------------------------------------------

    def eval_window(self, handles: Handles, micro_batches: Sequence[Batch], algorithm: Objective) -> EvalSums:
        """Sums over all ranks of the losses and metrics of these micro-batches, without gradients. Collective; every rank gives at least one
        micro-batch (a filler will do), not necessarily as many as the others."""
        if not micro_batches:
            raise PacelineError(
                Diagnostic(
                    "strategy.empty_window",
                    "an evaluation window needs at least one micro-batch on every rank",
                    hint="give a filler (weight 0)",
                )
            )
        sums: dict[str, Tensor] = {}
        weights: dict[str, int] = {}
        rows = 0
        with contextlib.ExitStack() as stack:
            for role in algorithm.trains:
                stack.enter_context(evaluating(handles[role].root))
            for batch in self.evaluated(handles, micro_batches, algorithm, sums):
                rows += batch.num_rows
                for term, weight in algorithm.weights(batch).items():
                    weights[term] = weights.get(term, 0) + int(weight)
        names, terms = sorted(sums), sorted(weights)
        local = torch.stack([sums[n] for n in names]).tolist()
        total = [value / self.loss_copies for value in self.world.all_reduce_sum_float(local)]
        counts = self._count([weights[t] for t in terms] + [rows])
        return EvalSums(dict(zip(names, total, strict=True)), dict(zip(terms, counts[:-1], strict=True)), counts[-1])

    def evaluated(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective, sums: dict[str, Tensor]
    ) -> Iterator[Batch]:
        """The micro-batches, each computed by the time the next is asked for; ``sums`` has the same names on every rank at the end."""
        for batch in micro_batches:
            placed = self.informed(handles, self.place(batch), algorithm)
            for role in algorithm.trains:
                outputs = self.evaluation_module(handles[role])(placed, algorithm.ask(role, training=False))
                add_evaluation(algorithm, role, outputs, placed, sums)
            yield batch

    # --- arithmetic over ranks -------------------------------------------------------------------------------------

    def evaluation_module(self, handle: Handle) -> nn.Module:
        """What is called without gradients: the root, unless an engine must know of every forward."""
        return handle.root

    def _count(self, local: list[int]) -> list[int]:
        """Sums over the data-parallel ranks of what every rank counted in its rows: those who see the same rows count once."""
        return [total // self.plan.mesh.model_copies for total in self.world.all_reduce_sum(local)]

    def global_weights(self, micro_batches: Sequence[Batch], algorithm: Objective) -> tuple[dict[str, int], int]:
        """The window's weight by term and its real tokens, over all ranks: one int64 all-reduce before the first forward."""
        local: dict[str, int] = {}
        for batch in micro_batches:
            for term, weight in algorithm.weights(batch).items():
                local[term] = local.get(term, 0) + int(weight)
        terms = sorted(local)
        counts = self._count([local[t] for t in terms] + [sum(b.num_tokens for b in micro_batches)])
        return dict(zip(terms, counts[:-1], strict=True)), counts[-1]

    def global_results(
        self, sums: Mapping[str, Tensor], norms: Mapping[Role, Tensor], weights: Mapping[str, int]
    ) -> tuple[dict[str, float], dict[Role, float]]:
        """Mean loss by term (and of metrics named ``name/term``) and norm by role, equal on every rank, in one float64 all-reduce.

        Every rank has the whole norm already; rank 0's travels, so that all clip by the same bits.
        """
        stacked = torch.stack([*sums.values(), *(n.to(torch.float64) for n in norms.values())]).tolist()
        local = [v if i < len(sums) or self.world.rank == 0 else 0.0 for i, v in enumerate(stacked)]
        reduced = self.world.all_reduce_sum_float(local)
        over = [weights[name.rpartition("/")[2]] for name in sums]
        means = {name: reduced[i] / self.loss_copies / over[i] if over[i] else 0.0 for i, name in enumerate(sums)}
        return means, dict(zip(norms, reduced[len(sums) :], strict=True))

    def _skip_reason(self, trained: Sequence[Handle], finite: bool) -> str | None:
        return "overflow" if not finite and any(h.scaler is not None for h in trained) else None

    def _extras(self, trained: Sequence[Handle], grad_norms: Mapping[Role, float]) -> dict[str, float]:
        extras = {
            f"loss_scale/{h.role.value}" if len(trained) > 1 else "loss_scale": h.scaler.get_scale()
            for h in trained
            if h.scaler is not None
        }
        if len(trained) > 1:
            extras |= {f"grad_norm/{role.value}": norm for role, norm in grad_norms.items()}
        return extras


def add_evaluation(
    algorithm: Objective, role: Role, outputs: Mapping[str, Tensor], batch: Batch, sums: dict[str, Tensor]
) -> None:
    """Adds one micro-batch's losses and metrics to ``sums`` (float64)."""
    found = {**algorithm.losses(role, outputs, batch), **algorithm.metrics(role, outputs, batch)}
    for name, value in found.items():
        sums[name] = sums.get(name, 0.0) + value.detach().to(torch.float64)


def _metric(name: str) -> str:
    return name.rpartition("/")[0]


def _joint(norms: Mapping[Role, float]) -> float:
    """One number for the log: the norm over all roles."""
    values = list(norms.values())
    return values[0] if len(values) == 1 else math.sqrt(sum(v * v for v in values))


@contextlib.contextmanager
def evaluating(root: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; the mode it was in comes back."""
    was_training = root.training
    root.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        root.train(was_training)
