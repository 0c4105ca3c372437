"""The language-model head and its losses in chunks: never all logits at once, one autograd function per
quantity.

All take hidden [L, H] (labelled positions only), weight [V, H], bias [V] or None, labels int64 [L], and a
``HeadShape``. Sums are fp32 (fp64 for fp64 input).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.models.attention.kernel_choice import RowKernels
from paceline.models.compute_dtype import activation_dtype, compute_copy, keeps_fp32_sums, product_dtype
from paceline.models.triton_kernels import operators
from paceline.models.typed_autograd import Function, FunctionContext
from paceline.plan.model.kernels import head_chunk_bytes

CHUNK_BYTES = head_chunk_bytes(0)  # on a CPU; a device's own by its memory (``factory``)
CACHE_BYTES = 2**20  # bytes of ``accum_dtype`` logits per block of elementwise work on a CPU
_TINY = 1e-30  # below this a probability is inaccurate: the row's loss is computed from its logits


@dataclass(frozen=True)
class HeadShape:
    """logit = softcap · tanh(scale · (h·w + b) / softcap), or scale · (h·w + b) without a cap.

    Gemma 2: ``final_logit_softcapping``; Cohere: ``logit_scale``; Granite: 1 / ``logits_scaling``.
    """

    scale: float = 1.0
    softcap: float | None = None
    chunk_bytes: int = CHUNK_BYTES
    kernels: RowKernels | None = None  # of the root module


class ChunkedLogits:
    """The head's matrix products of one call; operands are upcast where the CPU has no instructions for their
    dtype (see ``precision``).

    ``product`` is the dtype of the products, ``accum_dtype`` that of logits and sums (fp32, or fp64 for fp64
    input).
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, shape: HeadShape) -> None:
        copy = compute_copy(weight)
        self.product = product_dtype(activation_dtype(weight), hidden.device)
        self.weight = copy.to(self.product)
        self.bias = None if bias is None else compute_copy(bias).to(self.product)
        self.hidden = hidden.to(self.product)
        self.accum_dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        self.shape = shape
        self.rows = self._fitting(self.accum_dtype)

    def _fitting(self, dtype: torch.dtype) -> int:
        """Return how many rows of logits of ``dtype`` fit the byte budget."""
        return max(1, self.shape.chunk_bytes // (torch.finfo(dtype).bits // 8 * self.weight.shape[0]))

    def chunks(self) -> Iterator[slice]:
        """Yield row ranges within the byte budget, of nearly equal size, none larger than the first."""
        total = self.hidden.shape[0]
        # As many chunks as the budget asks for, then even sizes: a last chunk of a few rows would waste a
        # pass over the weight.
        size = -(-total // max(-(-total // self.rows), 1))
        for start in range(0, total, max(size, 1)):
            yield slice(start, min(start + size, total))

    def blocks(self, rows: slice, raw: Tensor, *, cached: bool = True) -> Iterator[tuple[slice, Tensor]]:
        """Yield (rows of the call, their part of a chunk's ``raw``), as many rows as fit the budget in
        ``accum_dtype``.

        On a CPU and with ``cached``: few enough rows to stay in the processor's cache.
        """
        cached = cached and raw.device.type == "cpu"
        # 4 bytes a logit; a block of rows that stays in the cache is read once from memory for several
        # passes.
        step = max(1, CACHE_BYTES // (4 * raw.shape[1])) if cached else self._fitting(self.accum_dtype)
        for start in range(0, rows.stop - rows.start, step):
            part = slice(rows.start + start, min(rows.start + start + step, rows.stop))
            yield part, raw[start : start + step]

    def logits(self, rows: slice, out: Tensor | None = None) -> Tensor:
        """Return logits [rows, V] in ``accum_dtype``; ``out`` (in ``product``) is a buffer for the
        product.
        """
        return self.finish(self.raw(rows, out))

    def raw(self, rows: slice, out: Tensor | None = None) -> Tensor:
        """Return h·w + b, [rows, V] in ``product``."""
        # [r, H] · [H, V] -> [r, V], into the buffer's first rows.
        h = self.hidden[rows]
        raw = torch.mm(h, self.weight.t(), out=None if out is None else out[: h.shape[0]])
        return raw if self.bias is None else raw.add_(self.bias)

    def finish(self, raw: Tensor) -> Tensor:
        """Return logits in ``accum_dtype``; overwrites and returns ``raw`` itself if it has that dtype."""
        logits = raw.to(self.accum_dtype)
        if self.shape.scale != 1.0:
            logits.mul_(self.shape.scale)
        if self.shape.softcap is not None:
            logits.div_(self.shape.softcap).tanh_().mul_(self.shape.softcap)
        return logits

    def dlogits_draw(self, logits: Tensor) -> Tensor | float:
        """Return d logit / d (h·w + b) at these final logits."""
        if self.shape.softcap is None:
            return self.shape.scale
        # d tanh(x) / dx = 1 - tanh²(x), and tanh is logit / softcap.
        return (logits / self.shape.softcap).square_().neg_().add_(1.0).mul_(self.shape.scale)

    def buffer(self) -> Tensor:
        """Allocate room for one chunk's logits, to be reused over the call."""
        return self.hidden.new_empty(max(min(self.rows, self.hidden.shape[0]), 1), self.weight.shape[0])


class ChunkedGrads:
    """The gradients of hidden [L, H], weight [V, H] and bias [V] that are needed, accumulated over chunks of
    dLoss/d(h·w + b).

    hidden's is in ``product``, weight's and bias's are in ``accum_dtype``.
    """

    def __init__(
        self, head: ChunkedLogits, needed: tuple[bool, ...], weight: Tensor, bias: Tensor | None
    ) -> None:
        self.head = head
        self.hidden = torch.zeros_like(head.hidden) if needed[0] else None
        # the first chunk overwrites it; zeros if there is no chunk
        # [V, H] in fp32 is the largest tensor here: it is written once, not cleared and then added to.
        make = torch.empty_like if head.hidden.shape[0] else torch.zeros_like
        self.weight = make(weight, dtype=head.accum_dtype) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=head.accum_dtype) if needed[2] and bias is not None else None

    def add(self, rows: slice, grad: Tensor) -> None:
        """Add the contribution of one chunk; ``grad`` is dLoss/d(h·w + b) [rows, V]."""
        head, low = self.head, grad.to(self.head.product)
        if self.hidden is not None:
            torch.mm(low, head.weight, out=self.hidden[rows])
        if self.weight is not None:
            first = rows.start == 0  # the first chunk writes, the others add: no pass to clear [V, H]
            if head.product == self.weight.dtype:
                torch.addmm(self.weight, low.t(), head.hidden[rows], beta=0 if first else 1, out=self.weight)
            # 16-bit products whose sums stay fp32 in the kernel (``out_dtype``): no 16-bit rounding between
            # chunks.
            elif keeps_fp32_sums(low):
                factors, wide = (low.t(), head.hidden[rows]), torch.float32
                if first:
                    torch.mm(*factors, out_dtype=wide, out=self.weight)
                else:
                    torch.addmm(self.weight, *factors, out_dtype=wide, out=self.weight)
            else:
                # Rounded to 16 bits a chunk, but added up in fp32.
                piece = low.t().mm(head.hidden[rows])
                self.weight.copy_(piece) if first else self.weight.add_(piece)
        if self.bias is not None:
            self.bias.add_(grad.sum(0, dtype=self.bias.dtype))

    def all(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients of (hidden, weight, bias)."""
        return self.hidden, self.weight, self.bias


def as_given(
    grads: tuple[Tensor | None, ...], hidden: torch.dtype, weight: torch.dtype, scale: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """Return gradients of hidden, weight and bias in the dtypes of the tensors they belong to; scaled in
    place.
    """
    # In place: nobody else has these tensors, and a copy of [V, H] may not fit.
    scaled = grads if scale is None else tuple(g if g is None else g.mul_(scale) for g in grads)
    return tuple(
        None if g is None else g.to(dtype) for g, dtype in zip(scaled, (hidden, weight, weight), strict=True)
    )


class HeadInputs(NamedTuple):
    """What a head's losses are computed from: hidden [L, H] at labelled positions, weight [V, H], bias [V] or
    None, labels int64 [L].
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    shape: HeadShape


class GradientsContext(FunctionContext):
    """``dtypes``: of hidden and weight, whose gradients are saved."""

    dtypes: tuple[torch.dtype, torch.dtype]


class GradientsInForward(Function):
    """A scalar whose gradients of hidden, weight and bias, its first arguments, are computed in the forward.

    The backward scales them in place: they belong to this node alone, and autograd refuses a second backward.
    """

    @staticmethod
    def backward(ctx: GradientsContext, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the saved gradients."""
        hidden_dtype, weight_dtype = ctx.dtypes
        # One None for each argument after hidden, weight and bias.
        others = (None for _ in ctx.needs_input_grad[3:])
        return *as_given(ctx.saved_tensors, hidden_dtype, weight_dtype, grad), *others


class FusedNll(GradientsInForward):
    """(Σ -log p(label), number of correct argmaxes).

    Without labels the sum is 0 and the gradients are zeros, so that every parameter gets one. Under
    ``torch.no_grad`` use ``nll_sums``.
    """

    @staticmethod
    def forward(
        ctx: GradientsContext,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        shape: HeadShape,
        correct: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return an fp32 scalar (fp64 for fp64 input) and an int64 scalar."""
        head = ChunkedLogits(hidden, weight, bias, shape)
        gradients = ChunkedGrads(head, ctx.needs_input_grad, weight, bias)
        total = hidden.new_zeros((), dtype=head.accum_dtype)
        num_correct = labels.new_zeros(())
        # Chunks hold logits of ``product`` only: in 16 bits twice as many rows fit as of ``accum_dtype``.
        head.rows = head._fitting(head.product)
        buffer = head.buffer()
        kernel = shape.kernels is not None and shape.kernels.triton("loss", buffer)
        for rows in head.chunks():
            raw = head.raw(rows, buffer)
            if kernel:
                # Overwrites ``raw`` with dLoss/d(h·w + b).
                nll, best = operators.nll_gradient(raw, labels[rows], shape.scale, shape.softcap or 0.0)
                total += nll.sum()
                num_correct += (best == labels[rows]).sum() if correct else 0
                gradients.add(rows, raw)
                continue
            for part, block in head.blocks(rows, raw, cached=head.product != head.accum_dtype):
                nll, hits = _to_gradient_(head, part, block, labels[part], correct)
                total += nll
                num_correct += hits
            gradients.add(rows, raw)
        ctx.save_for_backward(*gradients.all())
        ctx.dtypes = (hidden.dtype, weight.dtype)
        ctx.mark_non_differentiable(num_correct)
        return total, num_correct


def _to_gradient_(
    head: ChunkedLogits, rows: slice, raw: Tensor, labels: Tensor, correct: bool
) -> tuple[Tensor, Tensor | int]:
    """Turn ``raw`` = h·w + b of these rows into dLoss/d(raw) in place; return their summed loss and number of
    correct argmaxes.
    """
    logits, target = head.finish(raw), labels[:, None]
    # Before the softmax overwrites them.
    hits = (logits.argmax(-1) == labels).sum() if correct else 0
    dlogits_draw = head.dlogits_draw(logits)
    # dNLL/dlogits = p - onehot, times d logit / d raw.
    nll = _softmax_(head, rows, logits, target)
    # p - onehot, without a [r, V] one-hot tensor.
    logits.scatter_add_(1, target, logits.new_full((), -1.0).expand(target.shape))
    if not (isinstance(dlogits_draw, float) and dlogits_draw == 1.0):
        logits.mul_(dlogits_draw)
    # 16-bit logits were widened into a copy: the gradient goes back to the buffer that the products read.
    if logits is not raw:
        raw.copy_(logits)
    return nll, hits


def _softmax_(head: ChunkedLogits, rows: slice, logits: Tensor, target: Tensor) -> Tensor:
    """Turn logits into probabilities in place; return Σ -log p(target).

    On a CPU the loss is read off the probability, which saves a pass over [rows, V]. Where the probability is
    too small to be accurate, the row's logits are computed again. On a device, finding these rows would need
    a synchronisation.
    """
    if logits.device.type != "cpu":
        sums = torch.logsumexp(logits, -1, keepdim=True)
        nll = (sums - logits.gather(1, target)).sum()
        logits.sub_(sums).exp_()
        return nll
    # -log p loses its digits as p underflows; such rows are computed again from logits below.
    torch.softmax(logits, dim=-1, out=logits)
    p = logits.gather(1, target).squeeze(1)
    nll = p.log().neg_()
    # Empty in nearly every call, so the second product costs nothing.
    lost = (p < _TINY).nonzero().squeeze(1)
    if lost.numel():
        index = torch.arange(rows.start, rows.stop, device=logits.device)[lost]
        for row in index.tolist():
            again = head.logits(slice(row, row + 1))[0]
            nll[row - rows.start] = torch.logsumexp(again, 0) - again[target[row - rows.start, 0]]
    return nll.sum()


@torch.no_grad()
def nll_sums(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, shape: HeadShape, correct: bool
) -> tuple[Tensor, Tensor]:
    """The values of ``FusedNll``, without gradients."""
    head = ChunkedLogits(hidden, weight, bias, shape)
    total, num_correct = hidden.new_zeros((), dtype=head.accum_dtype), labels.new_zeros(())
    buffer = head.buffer()
    for rows in head.chunks():
        logits = head.logits(rows, buffer)
        total += (torch.logsumexp(logits, -1) - logits.gather(1, labels[rows, None]).squeeze(1)).sum()
        if correct:
            num_correct += (logits.argmax(-1) == labels[rows]).sum()
    return total, num_correct
