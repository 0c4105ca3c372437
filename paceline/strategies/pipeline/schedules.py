"""Pipeline schedules (``torch.distributed.pipelining``): the stages of each rank, the number and the one
shape of micro-batches, and running them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.stage import _PipelineStageBase

from paceline.core.errors import ConfigError, PacelineError
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output
from paceline.strategies import codes

_SINGLE: dict[str, type[PipelineScheduleSingle]] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
_MULTI: dict[str, type[PipelineScheduleMulti]] = {
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}
SPLIT_BACKWARD = frozenset({"zero_bubble", "zbv"})  # gradients of inputs first, those of weights later


@dataclass(frozen=True)
class StageLayout:
    """The stages of one pipeline: ``ranks`` ranks with ``each`` stages, run by ``schedule``.

    Raises ConfigError ``strategy.pipeline_schedule`` for a number of stages that the schedule does not
    support.
    """

    schedule: str
    ranks: int
    each: int

    def __post_init__(self) -> None:
        exists, single = self.schedule in _SINGLE or self.schedule in _MULTI, self.schedule in _SINGLE
        if (
            not exists
            or (single and self.each != 1)
            or (self.schedule == "zbv" and self.each != 2)
            or self.ranks < 2
        ):
            raise ConfigError(
                codes.STRATEGY_PIPELINE_SCHEDULE(
                    "training.parallelism.pp_schedule",
                    f"{self.schedule}, {self.ranks} ranks, {self.each} stages each",
                )
            )

    @property
    def extra_outputs(self) -> frozenset[Output]:
        """Outputs required in addition. A split backward goes through the head twice, but the fused loss
        computes its gradients once; log-probabilities can be differentiated again.
        """
        return frozenset({Output.LOGPROBS}) if self.schedule in SPLIT_BACKWARD else frozenset()

    @property
    def count(self) -> int:
        """Total number of stages."""
        return self.ranks * self.each

    def own(self, rank: int) -> tuple[int, ...]:
        """Return the stages of pipeline rank ``rank``: every ranks-th one, or for zbv one on the way down and
        one on the way up.
        """
        if self.schedule == "zbv":
            return (rank, self.count - 1 - rank)
        return tuple(range(rank, self.count, self.ranks))

    def rank_of(self, stage: int) -> int:
        """Return the pipeline rank that has ``stage``."""
        return next(rank for rank in range(self.ranks) if stage in self.own(rank))

    def micro_batches(self, number: int) -> int:
        """Return the smallest number from ``number`` up that the schedule supports: interleaved ones run in
        rounds of equal length.
        """
        if self.schedule in ("interleaved", "zero_bubble"):
            # torch splits the micro-batches into ``number // ranks`` rounds, and asserts that they are
            # equal.
            while number % max(1, number // self.ranks):
                number += 1
        return number

    def kind(self, number: int) -> type[PipelineScheduleSingle] | type[PipelineScheduleMulti]:
        """Return the schedule's class.

        With fewer micro-batches than stages, 1F1B has no steady state and equals GPipe: the same order, the
        same memory.
        """
        if self.schedule == "1f1b" and number < self.count:
            return ScheduleGPipe
        return _SINGLE.get(self.schedule) or _MULTI[self.schedule]


@dataclass(frozen=True)
class StageTensorSpec:
    """The tensors sent between stages: hidden states [rows, length, width] of ``dtype``."""

    width: int
    dtype: torch.dtype
    parts: int = 1  # ranks that the length is sharded over (sequence parallelism)

    def shape(self, shape: FixedShape) -> tuple[int, int, int]:
        return (shape.rows, shape.length // self.parts, self.width)


class _Stage(PipelineStage):
    """Supports evaluation in a V schedule: torch 2.13 asks the stage after the turn for a gradient, which an
    evaluation does not have.
    """

    def get_local_bwd_output(self, mb_index: int) -> tuple[Tensor | None, ...]:
        """Return the gradients for the previous stage, on the same rank; none in an evaluation."""
        if not self.has_backward:
            return ()
        return super().get_local_bwd_output(mb_index)  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[Tensor | None, ...], mb_index: int) -> None:
        """Take what ``get_local_bwd_output`` of the next stage returned."""
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


class Running:
    """One schedule over this rank's stages, for a fixed shape and number of micro-batches."""

    def __init__(
        self,
        layout: StageLayout,
        stages: Mapping[int, nn.Module],
        shape: FixedShape,
        number: int,
        wire: StageTensorSpec,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        self.number = number
        self._first = 0 in stages
        pipeline_stages: list[_PipelineStageBase] = [
            _Stage(
                module,
                index,
                layout.count,
                device,
                input_args=_example(shape, wire, first=index == 0, last=False),
                output_args=_example(shape, wire, first=False, last=index == layout.count - 1),
                group=group,
            )
            for index, module in stages.items()
        ]
        kind = layout.kind(number)
        # losses are already sums divided by the window's weight, so gradients need no scaling
        self._schedule = (
            kind(pipeline_stages, number, loss_fn=_as_it_is, scale_grads=False)
            if issubclass(kind, PipelineScheduleMulti)
            else kind(pipeline_stages[0], number, loss_fn=_as_it_is, scale_grads=False)
        )

    def run(self, ids: Tensor, *, training: bool) -> None:
        """Run the forward (and backward) of all micro-batches. Collective.

        ``ids``: int64 [number · rows, length], read on the rank with the first stage. Raises the cause of an
        error inside the schedule.
        """
        # int64 [number]: the schedule cuts it like the ids, so that each stage learns which micro-batch it
        # has.
        index = torch.arange(self.number)
        call = self._schedule.step if training else self._schedule.eval
        try:
            call(*((ids,) if self._first else ()), target=index, index=index, return_outputs=False)
        except RuntimeError as error:
            raise _cause(error) from error


def _example(shape: FixedShape, wire: StageTensorSpec, *, first: bool, last: bool) -> Tensor:
    """Return a meta tensor with the size and dtype sent over a boundary, so that nothing is inferred by a
    forward or sent pickled.
    """
    if first:
        return torch.empty(shape.rows, shape.length, dtype=torch.int64, device="meta")
    if last:
        return torch.empty((), device="meta", requires_grad=True)
    return torch.empty(wire.shape(shape), dtype=wire.dtype, device="meta", requires_grad=True)


def _as_it_is(loss: Tensor, _: Tensor) -> Tensor:
    """The loss function of the schedule: the last stage already returns the loss."""
    return loss


def _cause(error: BaseException) -> BaseException:
    """Return the PacelineError that a schedule wrapped into its own error, or ``error``."""
    seen: Sequence[BaseException] = [error]
    # torch raises its own RuntimeError ``from`` the stage's: the diagnostic is somewhere along the chain.
    while (inner := seen[-1].__cause__) is not None:
        if isinstance(inner, PacelineError):
            return inner
        seen = [*seen, inner]
    return error


MULTIPLE = 64  # lengths are rounded up to this: few different shapes, and efficient ones for kernels


@dataclass(frozen=True)
class FixedShape:
    """The one shape of a window's micro-batches: stages must know the size of what they receive. It is
    ``rows`` × ``length`` tokens, one row of concatenated documents when ``packed``, else one row per
    document.

    ``longest`` is the length of the longest document.
    """

    rows: int
    length: int
    longest: int
    packed: bool

    @staticmethod
    def of(batches: Sequence[Batch], packed: bool, multiple: int = MULTIPLE) -> FixedShape:
        """Return the smallest shape that fits all ``batches``: it depends on these alone, so that a resumed
        run computes the same.
        """
        longest = max(batch.max_seqlen for batch in batches)
        if not packed:
            return FixedShape(max(len(batch.document_ids) for batch in batches), longest, longest, packed)
        length = max(batch.input_ids.shape[1] for batch in batches)
        # Rounded up to a multiple, which sequence parallelism divides and compiled kernels meet again.
        return FixedShape(1, -(-length // multiple) * multiple, longest, packed)

    def fit(self, batch: Batch) -> Batch:
        """Append documents of weight 0 to ``batch`` until it has this shape."""
        if not self.packed:
            added = [1] * (self.rows - len(batch.document_ids))
            return replace(_with_documents(batch, added), max_seqlen=self.longest)
        left = self.length - batch.input_ids.shape[1]
        # Padding in documents no longer than the longest: ``max_seqlen``, by which kernels size their grid,
        # stays.
        added = [self.longest] * (left // self.longest) + (
            [left % self.longest] if left % self.longest else []
        )
        return _with_documents(batch, added)

    def empty(self, like: Batch) -> Batch:
        """Return a micro-batch of this shape with weight 0."""
        nothing = torch.zeros(1, 0, dtype=torch.int64, device=like.input_ids.device)
        # No documents: ``fit`` fills the whole shape with weight 0.
        none = Batch(nothing, nothing, nothing, torch.zeros(1, dtype=torch.int32), 0, nothing[0], 0)
        return self.fit(none)


def _with_documents(batch: Batch, lengths: Sequence[int]) -> Batch:
    """Append documents of these lengths to ``batch``: token 0, no labels, id -1."""
    if not lengths:
        return batch
    device, total = batch.input_ids.device, sum(lengths)
    ids = torch.zeros(1, total, dtype=torch.int64, device=device)
    ends = torch.tensor(lengths, dtype=torch.int64).cumsum(0) + batch.input_ids.shape[1]

    def longer(tensor: Tensor, more: Tensor) -> Tensor:
        return torch.cat([tensor, more.to(tensor)], dim=-1)

    return Batch(
        input_ids=longer(batch.input_ids, ids),
        labels=longer(batch.labels, torch.full_like(ids, IGNORE_INDEX)),
        position_ids=longer(batch.position_ids, torch.cat([torch.arange(n) for n in lengths])[None]),
        cu_seqlens=longer(batch.cu_seqlens, ends),
        max_seqlen=max(batch.max_seqlen, *lengths),
        document_ids=longer(batch.document_ids, torch.full((len(lengths),), -1)),
        num_rows=batch.num_rows,
    )
