"""The head and its losses with the vocabulary sharded over a tp group: no rank ever has a whole row of
logits.

Each rank has rows [start, start + V/n) of the head's weight and the same hidden states and labels. A chunk
costs a max and a sum all-reduce of a few numbers per row (Shoeybi et al. 2019, section 3). Values are equal
on all ranks; the gradient of the hidden states is this rank's part of a sum: ``regions.copy_to_tp`` before
the call all-reduces it. Arguments as in ``head_kernels``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.models.heads.chunked_cross_entropy import (
    ChunkedGrads,
    ChunkedLogits,
    GradientsContext,
    GradientsInForward,
    HeadInputs,
    HeadShape,
    as_given,
)
from paceline.models.heads.token_logprobs import RequiredStats, entropy_of, largest
from paceline.models.parallel.tp_regions import Group, copy_to_tp
from paceline.models.typed_autograd import Function, FunctionContext


@dataclass(frozen=True)
class _Rows:
    """One chunk's values over the whole vocabulary, [r] each. ``inside``: whether the label is among this
    rank's columns; ``target``: its local column.
    """

    sums: Tensor  # log Σ exp(logit)
    picked: Tensor  # the label's logit
    spread: Tensor | None  # Σ p · logit
    num_correct: Tensor  # int64 scalar: rows whose argmax is the label
    target: Tensor
    inside: Tensor


@dataclass(frozen=True)
class VocabularyPart:
    """This rank's columns of the logits, from ``start`` on, in a group with equal shards; used in place of
    ``lm_head.WholeVocabulary``.
    """

    group: Group
    start: int

    def nll(self, inputs: HeadInputs, correct: bool) -> tuple[Tensor, Tensor]:
        """Return (Σ -log p(label), number of correct argmaxes). Collective over the group."""
        hidden, weight, bias, labels, shape = inputs
        if torch.is_grad_enabled():
            entered = copy_to_tp(hidden, self.group)
            return ParallelNll.apply(entered, weight, bias, labels, shape, correct, self)
        head = ChunkedLogits(hidden, weight, bias, shape)
        total, num_correct = hidden.new_zeros((), dtype=head.accum_dtype), labels.new_zeros(())
        for rows in head.chunks():
            chunk = self.rows(head.logits(rows), labels[rows], correct=correct)
            total += (chunk.sums - chunk.picked).sum()
            num_correct += chunk.num_correct
        return total, num_correct

    def stats(self, inputs: HeadInputs, required: RequiredStats) -> tuple[Tensor, Tensor, Tensor]:
        """Return (log p(label) [L], entropy [L], number of correct argmaxes). Collective over the group."""
        hidden, weight, bias, labels, shape = inputs
        entered = copy_to_tp(hidden, self.group)
        return ParallelStats.apply(entered, weight, bias, labels, shape, required, self)

    def rows(self, logits: Tensor, labels: Tensor, *, correct: bool, entropy: bool = False) -> _Rows:
        """Reduce a chunk of logits [r, V/n] over the whole vocabulary; among equal maxima the lowest column
        wins. Collective over the group.
        """
        width = logits.shape[1]
        local = labels - self.start
        inside = (local >= 0) & (local < width)
        # A valid index for every row; what it picks up outside this shard is masked.
        target = local.clamp(0, width - 1)
        # Softmax over all ranks' columns: the maximum first, then one sum of all partial results.
        # [r] each, of this rank's columns.
        top, column = logits.max(dim=-1)
        peak = top.clone()
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=self.group)
        # Relative to the maximum over all ranks: no exponential overflows, and all ranks' sums add up.
        weights = (logits - peak[:, None]).exp_()
        parts = [weights.sum(-1), logits.gather(1, target[:, None]).squeeze(1).masked_fill(~inside, 0.0)]
        if entropy:
            parts.append(weights.mul_(logits).sum(-1))
        # [2 or 3, r]: one all-reduce of a few numbers a row instead of a gather of [r, V].
        joint = torch.stack(parts)
        dist.all_reduce(joint, group=self.group)
        num_correct = labels.new_zeros(())
        # The argmax: the lowest column among the ranks that hold the maximum.
        if correct:
            # a rank without the maximum must not win the minimum of columns
            first = (column + self.start).masked_fill(top != peak, torch.iinfo(column.dtype).max)
            dist.all_reduce(first, dist.ReduceOp.MIN, group=self.group)
            num_correct = (first == labels).sum()
        # Σ p · logit; the entropy is log Σ exp(logit) minus this.
        spread = joint[2] / joint[0] if entropy else None
        return _Rows(joint[0].log() + peak, joint[1], spread, num_correct, target, inside)

    def entropy_of_likeliest(self, logits: Tensor, number: int) -> Tensor:
        """Return the entropy of the ``number`` likeliest tokens of all ranks' columns. Collective."""
        # The overall likeliest are among each rank's likeliest.
        own = largest(logits, number)
        of_ranks = [torch.empty_like(own) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(of_ranks, own, group=self.group)
        return entropy_of(largest(torch.cat(of_ranks, dim=-1), number))


def _minus_onehot_(p: Tensor, target: Tensor, inside: Tensor, by: Tensor) -> None:
    """In place, p[i, target[i]] -= by[i] for the rows i whose label this shard holds (``inside``)."""
    p.scatter_add_(1, target[:, None], by.to(p.dtype).neg().masked_fill(~inside, 0.0)[:, None])


class ParallelNll(GradientsInForward):
    """``head_kernels.FusedNll`` on a shard of the vocabulary: the gradients are computed in the forward."""

    @staticmethod
    def forward(
        ctx: GradientsContext,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        shape: HeadShape,
        correct: bool,
        part: VocabularyPart,
    ) -> tuple[Tensor, Tensor]:
        """Return an fp32 scalar (fp64 for fp64 input) and an int64 scalar, equal on all ranks."""
        head = ChunkedLogits(hidden, weight, bias, shape)
        gradients = ChunkedGrads(head, ctx.needs_input_grad, weight, bias)
        total, num_correct = hidden.new_zeros((), dtype=head.accum_dtype), labels.new_zeros(())
        for rows in head.chunks():
            logits = head.logits(rows)
            chunk = part.rows(logits, labels[rows], correct=correct)
            total += (chunk.sums - chunk.picked).sum()
            num_correct += chunk.num_correct
            dlogits_draw = head.dlogits_draw(logits)
            # This rank's columns of the softmax over the whole vocabulary, [r, V/n].
            p = logits.sub_(chunk.sums[:, None]).exp_()
            # Only the rank that holds the label subtracts.
            _minus_onehot_(p, chunk.target, chunk.inside, torch.ones_like(chunk.sums))
            gradients.add(rows, p.mul_(dlogits_draw))
        ctx.save_for_backward(*gradients.all())
        ctx.dtypes = (hidden.dtype, weight.dtype)
        ctx.mark_non_differentiable(num_correct)
        return total, num_correct


class _ParallelStatsContext(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor]
    shape: HeadShape
    start: int


class ParallelStats(Function):
    """``token_stats.TokenStats`` on a shard of the vocabulary; keeps no logits, and its backward needs no
    communication.
    """

    @staticmethod
    def forward(
        ctx: _ParallelStatsContext,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        shape: HeadShape,
        required: RequiredStats,
        part: VocabularyPart,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return fp32 [L] (fp64 for fp64 input), the same, and an int64 scalar, equal on all ranks."""
        head = ChunkedLogits(hidden, weight, bias, shape)
        logp, sums, spread = (hidden.new_zeros(labels.shape, dtype=head.accum_dtype) for _ in range(3))
        num_correct = labels.new_zeros(())
        for rows in head.chunks():
            logits, of_all = head.logits(rows), required.entropy and not required.likeliest
            chunk = part.rows(logits, labels[rows], correct=required.correct, entropy=of_all)
            sums[rows], logp[rows] = chunk.sums, chunk.picked - chunk.sums
            num_correct += chunk.num_correct
            if chunk.spread is not None:
                spread[rows] = chunk.sums - chunk.spread
            elif required.entropy:
                spread[rows] = part.entropy_of_likeliest(logits, required.likeliest)
        ctx.save_for_backward(hidden, weight, bias, labels, sums, spread)
        ctx.shape, ctx.start = shape, part.start
        ctx.mark_non_differentiable(num_correct)
        # An output without a gradient stays None: no zeros of [L], and no entropy term.
        ctx.set_materialize_grads(False)
        return logp, spread, num_correct

    @staticmethod
    def backward(
        ctx: _ParallelStatsContext, grad_logp: Tensor | None, grad_entropy: Tensor | None, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Compute the logits again, a chunk at a time."""
        hidden, weight, bias, labels, sums, spread = ctx.saved_tensors
        head = ChunkedLogits(hidden, weight, bias, ctx.shape)
        gradients = ChunkedGrads(head, ctx.needs_input_grad, weight, bias)
        if grad_logp is None:
            grad_logp = torch.zeros_like(sums)
        width = weight.shape[0]
        for rows in head.chunks():
            logits = head.logits(rows)
            dlogits_draw = head.dlogits_draw(logits)
            logs = logits.sub_(sums[rows, None])
            p = logs.exp()
            g = p * -grad_logp[rows, None]
            local = labels[rows] - ctx.start
            _minus_onehot_(g, local.clamp(0, width - 1), (local >= 0) & (local < width), -grad_logp[rows])
            if grad_entropy is not None:
                g.sub_(p.mul_(logs.add_(spread[rows, None])).mul_(grad_entropy[rows, None]))
            gradients.add(rows, g.mul_(dlogits_draw))
        return *as_given(gradients.all(), hidden.dtype, weight.dtype), None, None, None, None
