"""Log-probability and entropy of each token; the backward reuses as many kept logits as fit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.models.heads.chunked_cross_entropy import ChunkedGrads, ChunkedLogits, HeadShape, as_given
from paceline.models.typed_autograd import Function, FunctionContext

KEPT_CHUNKS = 3  # recomputing one in the backward takes as much memory: logits, probabilities, gradient


@dataclass(frozen=True)
class RequiredStats:
    """Which outputs are required besides log-probabilities, and whether a backward will follow.

    ``likeliest``: the entropy is of so many likeliest tokens, without gradient; 0: of all.
    """

    entropy: bool = False
    correct: bool = False
    backward: bool = True
    likeliest: int = 0


class _StatsContext(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor]
    shape: HeadShape
    chunks: list[slice]
    kept: list[Tensor]  # logits of the first chunks


class TokenStats(Function):
    """(log p(label) [L], entropy [L], number of correct argmaxes); outputs that are not required are zeros.

    d log p/d logit = onehot - p; d entropy/d logit_j = -p_j (log p_j + entropy). If all logits fit in
    ``KEPT_CHUNKS`` chunks, they are kept for the backward, which turns them into their gradient in place.
    Else one chunk fewer is kept, which leaves room to recompute the others one at a time.
    """

    @staticmethod
    def forward(
        ctx: _StatsContext,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        shape: HeadShape,
        required: RequiredStats,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return fp32 [L] (fp64 for fp64 input), the same, and an int64 scalar."""
        head = ChunkedLogits(hidden, weight, bias, shape)
        logp, sums, spread = (hidden.new_zeros(labels.shape, dtype=head.accum_dtype) for _ in range(3))
        num_correct = labels.new_zeros(())
        # The first ``room`` chunks keep their logits for the backward.
        chunks, room = _plan(head, required.backward)
        buffer = head.buffer() if len(chunks) > room else None
        kept = []
        # Chunks by product; within a chunk, blocks of rows that fit the cache.
        for i, rows in enumerate(chunks):
            raw = head.raw(rows, None if i < room else buffer)
            for part, block in head.blocks(rows, raw):
                logits = head.finish(block)
                # With ``mean`` = Σ p · logit the entropy is log Σ exp(logit) - mean.
                sums[part], mean = _moments(logits, required.entropy and not required.likeliest)
                logp[part] = logits.gather(1, labels[part, None]).squeeze(1) - sums[part]
                if mean is not None:
                    spread[part] = sums[part] - mean
                elif required.entropy:
                    spread[part] = entropy_of(largest(logits, required.likeliest))
                if required.correct:
                    num_correct += (logits.argmax(-1) == labels[part]).sum()
            if i < room:
                kept.append(raw)
        ctx.save_for_backward(hidden, weight, bias, labels, sums, spread)
        ctx.shape, ctx.kept, ctx.chunks = shape, kept, chunks
        ctx.mark_non_differentiable(num_correct)
        ctx.set_materialize_grads(False)
        return logp, spread, num_correct

    @staticmethod
    def backward(
        ctx: _StatsContext, grad_logp: Tensor | None, grad_entropy: Tensor | None, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Kept logits can be used once: a second backward through a retained graph recomputes all of them."""
        hidden, weight, bias, labels, sums, spread = ctx.saved_tensors
        # Taken out: the backward overwrites them in place.
        kept, ctx.kept = ctx.kept, []
        head = ChunkedLogits(hidden, weight, bias, ctx.shape)
        gradients = ChunkedGrads(head, ctx.needs_input_grad, weight, bias)
        if grad_logp is None:
            grad_logp = torch.zeros_like(sums)
        # the first kept chunk's memory is free once its gradient is taken: the others are recomputed there
        buffer = kept[0] if kept else head.buffer() if len(ctx.chunks) > 1 else None
        for i, rows in enumerate(ctx.chunks):
            raw = kept[i] if i < len(kept) else head.raw(rows, buffer)
            finished = i < len(kept) and head.product == head.accum_dtype  # already finished in place
            for part, block in head.blocks(rows, raw):
                logits = block if finished else head.finish(block)
                dlogits_draw = head.dlogits_draw(logits)
                # Logits become log-probabilities, then their gradient, in the same memory.
                # log p = logit - log Σ exp(logit).
                logs = logits.sub_(sums[part, None])
                more = None if grad_entropy is None else (spread[part, None], grad_entropy[part, None])
                g = _grad_logits_(logs, labels[part, None], grad_logp[part, None], more)
                if not (isinstance(dlogits_draw, float) and dlogits_draw == 1.0):
                    g.mul_(dlogits_draw)
                if g is not block:
                    block.copy_(g)
            gradients.add(rows, raw)
        return *as_given(gradients.all(), hidden.dtype, weight.dtype), None, None, None


def _plan(head: ChunkedLogits, backward: bool) -> tuple[list[slice], int]:
    """Return (row ranges, how many of them are kept for the backward). If all can be kept they are one range:
    one product, which reads the weight once.
    """
    chunks = list(head.chunks())
    if not backward or len(chunks) < 2:
        return chunks, len(chunks) if backward else 0
    # All of them fit in the memory that recomputing a chunk would take: one product, nothing recomputed.
    if len(chunks) <= KEPT_CHUNKS:
        return [slice(0, head.hidden.shape[0])], 1
    return chunks, KEPT_CHUNKS - 1


def largest(logits: Tensor, number: int) -> Tensor:
    """Return the largest of logits [r, V], at most ``number`` a row, in order."""
    return logits.topk(min(number, logits.shape[-1]), dim=-1).values


def entropy_of(logits: Tensor) -> Tensor:
    """Return the entropy [r] of the distribution over logits [r, V]."""
    logs = torch.log_softmax(logits, dim=-1)
    return -(logs.exp() * logs).sum(-1)


def _moments(logits: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Return (log Σ exp(logit) [r], Σ p · logit [r] or None) of logits [r, V]."""
    if not entropy:
        return torch.logsumexp(logits, -1), None
    top = logits.amax(-1, keepdim=True)
    # Shifted by the row's maximum, so that no exponential overflows.
    weights = (logits - top).exp_()
    total = weights.sum(-1)
    return total.log() + top.squeeze(-1), weights.mul_(logits).sum(-1) / total


def _grad_logits_(logs: Tensor, target: Tensor, grad: Tensor, more: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return dLoss/d logit [r, V]; overwrites ``logs`` = log p. ``more``: (entropy, gradient of the entropy),
    [r, 1] each.
    """
    if more is None:
        return logs.exp_().mul_(-grad).scatter_add_(1, target, grad.to(logs.dtype))
    p = logs.exp()
    # p (log p + entropy) · gradient: the negative of the entropy's gradient by the logits.
    extra = p.mul(logs.add_(more[0])).mul_(more[1])
    return logs.copy_(p.mul_(-grad).scatter_add_(1, target, grad.to(logs.dtype)).sub_(extra))
