"""Run a window's micro-batches through a strategy, to one optimizer step or to evaluation sums (contract 3),
with losses as sums and weights (contract 2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError, PacelineError
from paceline.models.module_tensors import replaced
from paceline.plan.hardware.device_kinds import kind_of
from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output, Role
from paceline.protocols.window import EvalSums, StepLimit, StepOutcome, StepResult, UnreadResult
from paceline.runtime.device.device import CopiedToHost, stamp, sum_dtype
from paceline.strategies import codes
from paceline.strategies.model_handle import Handle, Handles
from paceline.strategies.strategy import Runner, Strategy
from paceline.strategies.window.joint_losses import joint_gradients, joint_window
from paceline.strategies.window.nonfinite_watch import NonFiniteWatch
from paceline.strategies.window.weights import (
    REFUSED,
    Means,
    WindowLosses,
    WindowSummary,
    WindowWeights,
    scaled,
    tokens_by_expert,
)

_AGREED_AT_ONCE = 8  # micro-batches evaluated between two checks of whether every rank has more

Outputs = Mapping[str, Tensor]


def make_runner(strategy: Strategy) -> Runner:
    """Return the strategy's own runner, or the default one."""
    return (strategy.runner or WindowRunner)(strategy)


class WindowRunner:
    """Runs windows through a strategy: forward and backward of each micro-batch, one step per trained role;
    evaluation; forwards of frozen models.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.world, self.mesh = strategy.world, strategy.plan.mesh
        self._ahead = CopiedAhead(strategy.world.device)

    # --- training

    def start_window(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        algorithm: Objective,
        *,
        lr: float,
        max_grad_norm: float | None,
        generator_seed: Callable[[int], int] | None = None,
    ) -> UnreadResult:
        """As ``train_window``, whose result is on its way when this returns: on an accelerator the host has
        only enqueued the step and waits for nothing.
        """
        if type(self).train_window is not WindowRunner.train_window:  # a user's own
            if self.strategy.limit is not None:
                raise _cannot_skip(type(self).__qualname__)
            result = self.train_window(
                handles,
                micro_batches,
                algorithm,
                lr=lr,
                max_grad_norm=max_grad_norm,
                generator_seed=generator_seed,
            )
            return UnreadResult(lambda: result)
        return self._started(handles, micro_batches, algorithm, lr, max_grad_norm, generator_seed)

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
        """Make one optimizer step over ``micro_batches`` (the same number on every rank). Collective; the
        result is equal on all ranks.

        The loss is the sum over terms of (sum over the global window) / W, W being the term's global weight.
        ``max_grad_norm`` None or 0 does not clip (the norm is still reported). ``generator_seed(j)`` seeds
        torch before micro-step j.

        A model with non-finite gradients is not changed. Under fp16 the step is then skipped as ``overflow``
        and the scale halved (``grad_norm`` is inf or nan). Otherwise the values are returned, and the caller
        may raise.
        """
        return self._started(handles, micro_batches, algorithm, lr, max_grad_norm, generator_seed).read()

    def _started(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        algorithm: Objective,
        lr: float,
        max_grad_norm: float | None,
        generator_seed: Callable[[int], int] | None,
    ) -> UnreadResult:
        start = stamp(self.world.device)
        # Global weights first: they scale each micro-batch's loss, so gradients are those of the global mean.
        weights = WindowWeights(micro_batches, algorithm, self.world, self.mesh.model_copies)
        # Every rank skips together, as all see the same sums: a rank that stepped alone would hang the
        # others.
        if not weights.any():
            counts, tokens = weights.named()
            nothing = StepResult(dict.fromkeys(counts, 0.0), counts, None, "no_labels", tokens)
            return UnreadResult(lambda: nothing)
        means = self.window_means(handles, micro_batches, algorithm)
        # means of the whole window are known only now, before any loss needs them
        micro_batches = [batch.with_numbers(means) for batch in micro_batches]
        # Forward and backward of all micro-batches, then one optimizer step per trained model.
        trained = [handles[role] for role in algorithm.trains]
        # Known before the first forward, so that every rank stacks the same names below.
        names = [*weights.terms, *algorithm.train_metrics]
        sums = {
            name: torch.zeros((), dtype=sum_dtype(self.world.device), device=self.world.device)
            for name in names
        }
        for handle in trained:
            handle.module.train()
            self.strategy.zero_grad(handle)
        losses = WindowLosses(algorithm, weights.scales(self.strategy.averaging_factor), sums)
        self._accumulate(handles, micro_batches, losses, generator_seed)
        with replaced(self.strategy, limit=self._limit(weights, sums)):
            outcomes = {h.role: self.strategy.finish(h, lr=lr, max_grad_norm=max_grad_norm) for h in trained}
            if self.strategy.limit is not None and any(o.refused is None for o in outcomes.values()):
                raise _cannot_skip(type(self.strategy).__qualname__)
        # One all-reduce for everything that is reported; every rank reads the same numbers from it.
        numbers, tokens_of = _named(outcomes), tokens_by_expert(trained[0])
        # Norms are already equal on all ranks: one rank's value plus zeros passes the sum unchanged.
        reported = [n if self.world.is_main else torch.zeros_like(n) for n in numbers.values()]
        results = torch.stack([*sums.values(), *reported])
        more = results.new_zeros(0) if tokens_of is None else tokens_of.flatten().to(results)
        reduced = self.world.all_reduce_tensor(torch.cat([results, more]))
        # Enqueued now, read a step later: the host never waits for a step that it has just started.
        copied = CopiedToHost([reduced, *weights.on_device()])
        summary = WindowSummary(
            tuple(sums),
            tuple(numbers),
            tuple(outcomes),
            0 if tokens_of is None else tokens_of.shape[1],
            any(outcome.loss_scale is not None for outcome in outcomes.values()),
            self.strategy.loss_copies,
        )

        @cache  # a step that is not late is waited for first, and recorded then
        def read() -> StepResult:
            values, *counts = copied.read()
            return summary.of(values.tolist(), *weights.named(counts), algorithm)

        return UnreadResult(read, copied.under_way, copied.arrives, lambda: copied.seconds_since(start))

    def repeat(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        algorithm: Objective,
        index: int,
        generator_seed: Callable[[int], int],
    ) -> NonFiniteWatch:
        """Run the micro-batch at ``index`` of a window again, without a step; return what was not finite on
        this rank. Collective; all gradients are cleared.
        """
        weights = WindowWeights(micro_batches, algorithm, self.world, self.mesh.model_copies)
        means = self.window_means(handles, micro_batches, algorithm)
        batch = micro_batches[index].with_numbers(means)
        trained = [handles[role] for role in algorithm.trains]
        for handle in trained:
            handle.module.train()
            self.strategy.zero_grad(handle)
        sums = {name: torch.zeros((), device=self.world.device) for name in weights.terms}
        sums |= {name: torch.zeros((), device=self.world.device) for name in algorithm.train_metrics}
        # The scales and means of the whole window, so that the repeated micro-batch sees the step's own
        # numbers.
        losses = WindowLosses(algorithm, weights.scales(self.strategy.averaging_factor), sums)
        watch = NonFiniteWatch(batch)
        with watch.on(root for handle in trained for root in handle.roots):
            # The seed of this micro-batch, so that dropout is that of the step.
            self._accumulate(handles, [batch], losses, lambda _: generator_seed(index))
        if not all(bool(sums[term].isfinite()) for term in weights.terms):
            watch.loss_is_not_finite()
        for handle in trained:
            self.strategy.zero_grad(handle)
        return watch

    def _limit(self, weights: WindowWeights, sums: Mapping[str, Tensor]) -> StepLimit | None:
        """Return the strategy's limit with the window's loss, over all ranks. Collective where there is
        one."""
        limit = self.strategy.limit
        if limit is None:
            return None
        # The sums below are over all ranks, among them copies of the same loss.
        scales = weights.scales(1.0 / self.strategy.loss_copies)
        total = torch.stack([scaled(sums[term], scale) for term, scale in scales.items()]).sum()
        return limit.of_window(self.world.all_reduce_tensor(total), weights.total())

    def _accumulate(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        losses: WindowLosses,
        generator_seed: Callable[[int], int] | None,
    ) -> None:
        """Run forward and backward of every micro-batch; gradients are synchronized in the last."""
        if losses.algorithm.joint is not None:
            self._accumulate_jointly(handles, micro_batches, losses, generator_seed)
            return
        for j, arrived in enumerate(self._ahead.each(micro_batches, self.strategy.shard_batch)):
            if generator_seed is not None:
                # By micro-step, not once a window: a resumed run draws the same dropout.
                torch.manual_seed(generator_seed(j))
            local_batch = self._with_reference(handles, arrived, losses.algorithm)
            for role in losses.algorithm.trains:
                self._micro_step(handles[role], local_batch, losses, last=j == len(micro_batches) - 1)

    def _micro_step(self, handle: Handle, batch: Batch, losses: WindowLosses, *, last: bool) -> None:
        """Run forward and backward of one micro-batch for one role; add each term's sum to ``sums``. Only the
        last one synchronizes.
        """
        # Communication in the last backward only: earlier gradients add up locally.
        with contextlib.nullcontext() if last else self.strategy.no_sync(handle):
            required = losses.algorithm.required_outputs(handle.role, training=True)
            self.strategy.backward(handle, losses.add(handle.role, handle.module(batch, required), batch))

    def _accumulate_jointly(
        self,
        handles: Handles,
        micro_batches: Sequence[Batch],
        losses: WindowLosses,
        generator_seed: Callable[[int], int] | None,
    ) -> None:
        """Run a window whose losses compare all its documents (Gao et al. 2021, arXiv:2101.06983).

        Their vectors come first, without a graph, then the loss and its gradient by vector. Then each
        micro-batch runs again with that gradient. A single micro-batch keeps its graph, and runs once.

        Both forwards of a micro-batch draw the same dropout, from its seed.
        """
        algorithm = losses.algorithm
        (role,) = algorithm.trains
        handle, required = handles[role], algorithm.required_outputs(role, training=True)
        batches = [*self._ahead.each(micro_batches, self.strategy.shard_batch)]

        def vectors(module: nn.Module, j: int) -> Tensor:
            if generator_seed is not None:
                torch.manual_seed(generator_seed(j))
            return algorithm.vectors(module(batches[j], required), batches[j])

        if alone := len(batches) == 1:
            found = [vectors(handle.module, 0)]
        else:
            with self.strategy.inference(handle):
                handle.root.train()  # with dropout
                found = [vectors(handle.root, j) for j in range(len(batches))]
        gradients = joint_gradients(self.world, algorithm, losses, found, batches)
        for j, gradient in enumerate(gradients):
            last = j == len(batches) - 1
            with contextlib.nullcontext() if last else self.strategy.no_sync(handle):
                again = found[0] if alone else vectors(handle.module, j)
                # Its gradient by ``again`` is ``gradient``: the chain rule, cut at the vectors.
                self.strategy.backward(handle, (again * gradient).sum())

    # --- without gradients

    def forward_no_grad(
        self, handles: Handles, role: Role, local_batch: Batch, required: frozenset[Output]
    ) -> dict[str, Tensor]:
        """Return the outputs of the model of ``role`` in eval mode without gradients; a role without a model
        is the policy without its adapter.
        """
        handle = handles.get(role, handles[Role.POLICY])
        # With LoRA the reference is the base model, which the policy already holds.
        bare = contextlib.nullcontext() if role in handles else handle.root.without_adapter()
        with self.strategy.inference(handle), bare:
            outputs: dict[str, Tensor] = handle.root(local_batch, required)
        return outputs

    def _with_reference(self, handles: Handles, local_batch: Batch, algorithm: Objective) -> Batch:
        """Return a micro-batch (on the device) with the outputs of the algorithm's reference roles added."""
        for role in algorithm.reference_roles:
            outputs = self.forward_no_grad(
                handles, role, local_batch, algorithm.required_outputs(role, training=False)
            )
            # As constants: the reference's outputs carry no graph.
            local_batch = algorithm.attach_outputs(role, outputs, local_batch)
        return local_batch

    def window_means(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective
    ) -> Mapping[str, float]:
        """Return the algorithm's ``window_means`` by name, over these micro-batches of all ranks; empty if it
        has none. Collective, with the same requirements as ``eval_window``.
        """
        needed, means = algorithm.window_means, Means()
        if needed is None:
            return {}
        for batch in self._given(micro_batches):
            local_batch = self.strategy.shard_batch(batch.others[needed.rows] if needed.rows else batch)
            answers = {
                role: self.forward_no_grad(
                    handles, role, local_batch, algorithm.required_outputs(role, training=False)
                )
                for role in needed.roles
            }
            means.add(algorithm.window_sums(answers, local_batch))
        return means.over(self.world.all_reduce_sum_float, self._count, self.strategy.loss_copies)

    def eval_window(self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective) -> EvalSums:
        """Return sums over all ranks of the losses and metrics of these micro-batches, without gradients.
        Collective.

        Every rank must give at least one micro-batch (a filler will do), not necessarily as many as the
        others. Raises PacelineError ``strategy.empty_window``.
        """
        sums: dict[str, Tensor] = {}
        weights: dict[str, int] = {}
        rows = 0
        with contextlib.ExitStack() as stack:
            for role in algorithm.trains:
                stack.enter_context(handles[role].averaged())
                stack.enter_context(self.strategy.inference(handles[role]))
            for batch in self._evaluated(handles, self._given(micro_batches), algorithm, sums):
                rows += batch.num_rows
                for term, weight in algorithm.weights(batch).items():
                    weights[term] = weights.get(term, 0) + int(weight)
        names, terms = sorted(sums), sorted(weights)
        # Sorted names, since dicts may be filled in another order on another rank.
        reduced = self.world.all_reduce_tensor(torch.stack([sums[n] for n in names])).tolist()
        total = [value / self.strategy.loss_copies for value in reduced]
        counts = self._count([weights[t] for t in terms] + [rows])
        return EvalSums(
            dict(zip(names, total, strict=True)), dict(zip(terms, counts[:-1], strict=True)), counts[-1]
        )

    def _given(self, micro_batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the micro-batches; if a forward is a collective, a rank with fewer continues with blank ones
        until all ranks are done.
        """
        # A count below the block's size means that the fullest rank has come to its end.
        waiting, last, count = iter(micro_batches), None, _AGREED_AT_ONCE
        while count == _AGREED_AT_ONCE:
            some = list(islice(waiting, _AGREED_AT_ONCE))
            last = some[-1] if some else last
            if last is None:
                raise PacelineError(codes.STRATEGY_EMPTY_WINDOW())
            count = len(some)
            if self.strategy.collective_forward:
                count = int(self.world.all_reduce_max_float([count])[0])
            yield from some
            # A rank without data must still join the forwards' collectives; weight 0 keeps the sums as they
            # are.
            yield from [blank_batch(last)] * (count - len(some))

    def _evaluated(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective, sums: dict[str, Tensor]
    ) -> Iterator[Batch]:
        """Yield the micro-batches, each after its evaluation was added to ``sums``, which in the end has the
        same names on every rank.
        """
        if algorithm.joint is not None:
            yield from self._evaluated_jointly(handles, micro_batches, algorithm, sums)
            return
        for batch in micro_batches:
            local_batch = self._with_reference(handles, self.strategy.shard_batch(batch), algorithm)
            for role in algorithm.trains:
                outputs = handles[role].root(local_batch, algorithm.required_outputs(role, training=False))
                self._add_evaluation(algorithm, role, outputs, local_batch, sums)
            yield batch

    def _evaluated_jointly(
        self, handles: Handles, micro_batches: Iterable[Batch], algorithm: Objective, sums: dict[str, Tensor]
    ) -> Iterator[Batch]:
        """As ``_evaluated``, with all documents of the evaluation compared with each other at the end."""
        (role,) = algorithm.trains
        required, found, batches = algorithm.required_outputs(role, training=False), list[Tensor](), []
        for batch in micro_batches:
            local_batch = self.strategy.shard_batch(batch)
            found.append(algorithm.vectors(handles[role].root(local_batch, required), local_batch))
            batches.append(local_batch)
            yield batch
        window = joint_window(self.world, found, batches)
        self._add_sums({**algorithm.joint_losses(window), **algorithm.joint_metrics(window)}, sums)

    def _add_evaluation(
        self, algorithm: Objective, role: Role, outputs: Outputs, batch: Batch, sums: dict[str, Tensor]
    ) -> None:
        """Add one micro-batch's losses and metrics to ``sums``."""
        terms = {**algorithm.losses(role, outputs, batch), **algorithm.metrics(role, outputs, batch)}
        self._add_sums(terms, sums)

    def _add_sums(self, terms: Mapping[str, Tensor], sums: dict[str, Tensor]) -> None:
        """Add to ``sums`` (float64)."""
        for name, value in terms.items():
            sums[name] = sums.get(name, 0.0) + value.detach().to(
                self.world.device, sum_dtype(self.world.device)
            )

    # --- arithmetic over ranks

    def _count(self, local: list[int]) -> list[int]:
        """Sum over the data-parallel ranks what every rank counted in its rows; ranks that read the same rows
        are counted once.
        """
        return [total // self.mesh.model_copies for total in self.world.all_reduce_sum(local)]


def _named(outcomes: Mapping[Role, StepOutcome]) -> dict[str, Tensor]:
    """Return every number of the outcomes under its name and role."""
    norms = {f"grad_norm/{role.value}": outcome.grad_norm for role, outcome in outcomes.items()}
    others = {f"loss_scale/{role.value}": outcome.loss_scale for role, outcome in outcomes.items()}
    others |= {f"{REFUSED}/{role.value}": outcome.refused for role, outcome in outcomes.items()}
    return {**{name: number for name, number in others.items() if number is not None}, **norms}


def _cannot_skip(name: str) -> ConfigError:
    return ConfigError(codes.STRATEGY_CANNOT_SKIP("training.on_spike", "skip", name=name))


def blank_batch(batch: Batch) -> Batch:
    """Return the same tokens with weight 0: for a forward that other ranks wait for."""
    return replace(
        batch,
        labels=torch.full_like(batch.labels, IGNORE_INDEX),
        places=None,
        document_ids=torch.full_like(batch.document_ids, -1),
        num_rows=0,
        others={name: blank_batch(other) for name, other in batch.others.items()},
    )


class CopiedAhead:
    """Copies the next micro-batch on a separate stream, for devices that copy while their kernels run.

    Out of pageable memory the host would wait for such a copy, but never for the kernels before it.
    """

    def __init__(self, device: torch.device) -> None:
        """``device``: of this process. On one without streams nothing is copied ahead."""
        self._device = device
        self._stream = torch.Stream(device) if kind_of(device.type).pins else None

    def each(self, batches: Sequence[Batch], move: Callable[[Batch], Batch]) -> Iterator[Batch]:
        """Yield ``move(batch)`` in order, each after the copy of the next one was enqueued; ``move`` may
        enqueue copies only.
        """
        if self._stream is None:
            yield from map(move, batches)
            return
        ahead = self._enqueued(batches[0], move) if batches else None
        for following in [*batches[1:], None]:
            # The next copy is enqueued before this micro-batch is yielded, so that both run at once.
            arriving, ahead = ahead, None if following is None else self._enqueued(following, move)
            assert arriving is not None
            yield self._ready(*arriving)

    def _enqueued(self, batch: Batch, move: Callable[[Batch], Batch]) -> tuple[Batch, torch.Event]:
        assert self._stream is not None
        with self._stream:
            return move(batch), self._stream.record_event()

    def _ready(self, moved: Batch, copied: torch.Event) -> Batch:
        """Let the kernels that follow wait for the copies of ``moved``, whose memory stays theirs until they
        are done.
        """
        computing = torch.accelerator.current_stream(self._device)
        computing.wait_event(copied)
        for tensor in moved.tensors():
            if tensor.device.type == self._device.type:
                # Else the allocator, which follows the copying stream only, could reuse the memory too
                # early.
                tensor.record_stream(computing)
        return moved
