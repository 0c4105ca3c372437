"""The divergence of a student's next-token distributions from a teacher's, from both models' hidden states,
without ever holding the logits of more than one chunk.

Logits are [r, V] of r labelled positions, sums fp32 (fp64 for fp64 input), as in ``head_kernels``. If one
embedding has more rows than the other (padding that no token uses), both distributions are over the rows that
both have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.compute_dtype import compute_copy
from paceline.models.heads.chunked_cross_entropy import (
    ChunkedGrads,
    ChunkedLogits,
    GradientsContext,
    GradientsInForward,
    HeadShape,
)
from paceline.models.heads.lm_head import Head
from paceline.models.typed_autograd import Function, FunctionContext
from paceline.protocols.batch import Batch
from paceline.protocols.roles import TEACHER, Divergence

_WIDE_TENSORS = 4  # further [r, V] tensors per chunk: chunks have that many times fewer rows


def divergence_rows(student: Tensor, teacher: Tensor, how: Divergence) -> tuple[Tensor, Tensor]:
    """(D [r], dD / d student logits [r, V]) of logits [r, V]; no autograd. See ``protocols.roles`` for
    D.

    With p the student's and q the teacher's distribution at temperature T: forward KL has the gradient (p -
    q) / T, reverse KL p (log p - log q - D) / T, and the mixture m between (1 - β) p (log p - log m - KL(p ‖
    m)) / T.
    """
    log_p = torch.log_softmax(student / how.temperature, dim=-1)
    log_q = torch.log_softmax(teacher.to(student.dtype) / how.temperature, dim=-1)
    p, beta = log_p.exp(), how.beta
    # Forward KL, reverse KL, and the generalised Jensen-Shannon divergence between them.
    if beta == 0.0:
        q = log_q.exp()
        divergence = (q * (log_q - log_p)).sum(-1)
        dlogits = p.sub_(q)
    elif beta == 1.0:
        gap = log_p.sub_(log_q)
        divergence = (p * gap).sum(-1)
        dlogits = p.mul_(gap.sub_(divergence[:, None]))
    else:
        # log((1 - β) p + β q), in logarithms so that small probabilities do not vanish.
        log_m = torch.logaddexp(log_p + math.log1p(-beta), log_q + math.log(beta))
        of_teacher = (log_q.exp() * log_q.sub_(log_m)).sum(-1)
        gap = log_p.sub_(log_m)
        of_student = (p * gap).sum(-1)
        divergence = beta * of_teacher + (1.0 - beta) * of_student
        # The teacher's term has the gradient of m as well; both sum to this closed form.
        dlogits = p.mul_(gap.sub_(of_student[:, None])).mul_(1.0 - beta)
    return divergence, dlogits.div_(how.temperature)


class TeacherHead:
    """The head of a frozen teacher, with its whole weight on this rank.

    If the strategy shards the teacher's weights, the head's are copied once, in their compute dtype. The copy
    is made inside the teacher's forward, where they are gathered (``copy_head``), and never changes.
    """

    def __init__(self, head: Head) -> None:
        """Call outside of any forward. Raises ConfigError ``models.teacher_head`` if the head is not a plain
        linear one and its weights are sharded.
        """
        weight = head.linear.weight
        self._head = head
        self._whole = not isinstance(weight, DTensor) and weight.dim() == 2 and weight.numel() > 0
        self._copies: dict[torch.device, tuple[Tensor, Tensor | None]] = {}
        if not head.fused and not self._whole:
            raise ConfigError(codes.MODELS_TEACHER_HEAD("training.distributed_strategy", head.reason))

    def copy_head(self) -> None:
        """Call inside the teacher's forward: copy the weights that are whole only there."""
        weight, bias = self._head.linear.weight, self._head.linear.bias
        if not self._whole and not self._copies:
            # A clone: the gathered weight is freed after this forward.
            copies = (weight.detach().clone(), None if bias is None else bias.detach().clone())
            self._copies[weight.device] = copies

    def rows(self, hidden: Tensor) -> TeacherRows:
        """Return the teacher's logits at the positions of ``hidden`` [L, H], computed a chunk at a time."""
        if not self._head.fused:
            return TeacherRows(self._head, hidden, None)
        weight, bias = self._weights(hidden.device)
        return TeacherRows(self._head, hidden, ChunkedLogits(hidden, weight, bias, self._head.shape))

    def _weights(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        weight, bias = self._head.linear.weight, self._head.linear.bias
        if self._whole and weight.device == device:
            return weight, bias
        if device not in self._copies:  # a replica on another device of this process
            source = next(iter(self._copies.values()), (weight, bias))
            moved = [None if one is None else compute_copy(one).detach().to(device) for one in source]
            assert moved[0] is not None
            self._copies[device] = (moved[0], moved[1])
        return self._copies[device]


class TeacherRows:
    """The teacher's logits [r, V] at some positions, computed on demand."""

    def __init__(self, head: Head, hidden: Tensor, products: ChunkedLogits | None) -> None:
        self._head, self._hidden, self._products = head, hidden, products

    @torch.no_grad()
    def logits(self, rows: slice) -> Tensor:
        """Return the logits of the positions ``rows``."""
        if self._products is not None:
            return self._products.logits(rows)
        return self._head.own_logits(self._hidden[rows])


class FusedDivergence(GradientsInForward):
    """Σ over positions of D, a chunk at a time.

    Without positions the sum is 0 and the gradients are zeros, so that every parameter gets one. Under
    ``torch.no_grad`` use ``divergence_sum``.
    """

    @staticmethod
    def forward(
        ctx: GradientsContext,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shape: HeadShape,
        teacher: TeacherRows,
        how: Divergence,
    ) -> Tensor:
        """Return an fp32 scalar from the student's hidden [L, H] and its head's weight and bias."""
        head = ChunkedLogits(hidden, weight, bias, shape)
        gradients = ChunkedGrads(head, ctx.needs_input_grad, weight, bias)
        total = _sum(head, teacher, how, gradients)
        ctx.save_for_backward(*gradients.all())
        ctx.dtypes = (hidden.dtype, weight.dtype)
        return total


@torch.no_grad()
def divergence_sum(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: HeadShape,
    teacher: TeacherRows,
    how: Divergence,
) -> Tensor:
    """The value of ``FusedDivergence``, without gradients."""
    return _sum(ChunkedLogits(hidden, weight, bias, shape), teacher, how, None)


def _sum(
    head: ChunkedLogits, teacher: TeacherRows, how: Divergence, gradients: ChunkedGrads | None
) -> Tensor:
    head.rows = max(1, head.rows // _WIDE_TENSORS)
    total = head.hidden.new_zeros((), dtype=head.accum_dtype)
    for rows in head.chunks():
        logits, other = head.logits(rows), teacher.logits(rows)
        # Vocabularies are padded to different multiples; the surplus rows belong to no token.
        common = min(logits.shape[1], other.shape[1])
        divergence, dlogits = divergence_rows(logits[:, :common], other[:, :common], how)
        total += divergence.sum()
        if gradients is not None:
            dlogits_draw = head.dlogits_draw(logits)
            # rows of the embedding that the other model lacks are padding: no gradient
            logits[:, :common], logits[:, common:] = dlogits, 0.0
            gradients.add(rows, logits.mul_(dlogits_draw))
    return total


class _LogitsContext(FunctionContext):
    saved_tensors: tuple[Tensor]  # the gradient of the logits


class _OfLogits(Function):
    """Σ D of logits [r, V], for a head that is differentiated by autograd."""

    @staticmethod
    def forward(ctx: _LogitsContext, student: Tensor, teacher: Tensor, how: Divergence) -> Tensor:
        """Return an fp32 scalar."""
        common = min(student.shape[1], teacher.shape[1])
        divergence, dlogits = divergence_rows(student[:, :common], teacher[:, :common], how)
        ctx.save_for_backward(torch.nn.functional.pad(dlogits, (0, student.shape[1] - common)))
        return divergence.sum()

    @staticmethod
    def backward(ctx: _LogitsContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the student's logits; the teacher gets none."""
        (dlogits,) = ctx.saved_tensors
        return dlogits * grad, None, None


class Comparison:
    """Computes ``Output.DIVERGENCE`` from a student's head and its teacher's."""

    def __init__(self, student: Head, teacher: TeacherHead, how: Divergence) -> None:
        self._student, self._teacher, self._how = student, teacher, how

    def __call__(self, hidden: Tensor, batch: Batch) -> Tensor:
        """hidden [1, T, H] of the student -> fp32 scalar, the sum over labelled positions."""
        places = batch.label_places()
        # Labelled positions of both models, in the same order.
        flat = hidden.flatten(0, 1).index_select(0, places)
        outputs = batch.tokens.get(TEACHER)
        assert outputs is not None or not places.numel(), "the teacher's outputs are missing"
        states = flat.new_zeros(0, 1) if outputs is None else outputs.flatten(0, 1).index_select(0, places)
        if not self._student.fused:
            return self._of_own_head(flat, states)
        teacher = self._teacher.rows(states) if places.numel() else TeacherRows(self._student, states, None)
        weight, bias = self._student.weights()
        arguments = (flat, weight, bias, self._student.shape, teacher, self._how)
        if torch.is_grad_enabled():
            return FusedDivergence.apply(*arguments)
        return divergence_sum(*arguments)

    def _of_own_head(self, hidden: Tensor, states: Tensor) -> Tensor:
        """Compute in chunks through the class's own head; each chunk is recomputed in the backward."""
        if not hidden.shape[0]:  # one position of weight zero keeps every parameter in the graph
            return self._student.own_logits(hidden.new_zeros(1, hidden.shape[1]) + hidden.sum()).sum() * 0.0
        teacher, step = self._teacher.rows(states), self._student.chunk_rows
        total = hidden.new_zeros((), dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32)
        for start in range(0, hidden.shape[0], step):
            rows = slice(start, start + step)

            def compared(part: Tensor, rows: slice = rows) -> Tensor:
                return _OfLogits.apply(self._student.own_logits(part), teacher.logits(rows), self._how)

            part = hidden[rows]
            total = total + (
                checkpoint(compared, part, use_reentrant=False) if torch.is_grad_enabled() else compared(part)
            )
        return total
