"""The modules that a pipeline schedule calls: stages that look up their micro-batch by index, and the root
with a rank's stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.models.parallel.pipeline_stages import StageModule
from paceline.protocols.batch import Batch
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Output

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_STAGE_STRIDE = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: spreads the seeds of neighbouring stages
_SEEDS = 2**63


@dataclass(frozen=True)
class ScheduleInput:
    """The micro-batches of one run of a schedule; equal on all ranks of a pipeline.

    finish    the head's outputs and their batch → the scalar loss for the backward; called by the last stage
    seed      of a micro-batch, set before its forward (dropout); None if nothing is random
    """

    batches: Sequence[Batch]
    outputs: frozenset[Output]
    finish: Callable[[dict[str, Tensor], Batch], Tensor]
    seed: Callable[[int], int] | None = None


class ScheduledStage(nn.Module):
    """A stage as a schedule calls it: its input comes from the previous stage, with the micro-batch's
    ``index``.
    """

    def __init__(self, stage: StageModule) -> None:
        super().__init__()
        self.stage = stage
        self.run_input: ScheduleInput | None = None

    def forward(self, states: Tensor, index: Tensor) -> Tensor:
        """Token ids or hidden states of one micro-batch, and index int64 [1] -> hidden states, or the loss
        (last stage).
        """
        assert self.run_input is not None
        # On the host: the schedule's index never leaves it.
        number = int(index)
        batch = self.run_input.batches[number]
        if self.run_input.seed is not None:
            # neighboring stages must not draw the same masks
            torch.manual_seed((self.run_input.seed(number) + self.stage.index * _STAGE_STRIDE) % _SEEDS)
        hidden: Tensor = self.stage(states, batch)
        if not self.stage.last:
            return hidden
        return self.run_input.finish(self.stage.answer(hidden, batch, self.run_input.outputs), batch)


class PipelineRoot(RootModule):
    """One rank's stages of a role's model; it has no forward, as only a schedule can run it."""

    adapter = None  # the config rules refuse low-rank adapters under a pipeline

    def __init__(self, stages: Sequence[StageModule]) -> None:
        super().__init__()
        self.scheduled = nn.ModuleList(ScheduledStage(stage) for stage in stages)

    @property
    def stages(self) -> list[StageModule]:
        """This rank's stages, in the model's order."""
        return [scheduled.stage for scheduled in self._scheduled]

    @property
    def _scheduled(self) -> list[ScheduledStage]:
        return [scheduled for scheduled in self.scheduled if isinstance(scheduled, ScheduledStage)]

    @property
    def by_index(self) -> dict[int, nn.Module]:
        """This rank's stages by index, as a schedule takes them."""
        return {stage.index: module for stage, module in zip(self.stages, self.scheduled, strict=True)}

    @property
    def hf(self) -> HFModel:
        """The model without the layers of other ranks: for its config and sizes."""
        return self.stages[0].hf

    @property
    def parts(self) -> Sequence[HFModel]:
        """The models of this rank's stages, each with its own layers alone."""
        return [stage.hf for stage in self.stages]

    def give(self, run_input: ScheduleInput | None) -> None:
        """Set the micro-batches of the next run of the schedule."""
        for scheduled in self._scheduled:
            scheduled.run_input = run_input

    def plain_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters under the whole model's names; a tied weight of which this rank holds
        both copies comes twice.
        """
        for stage in self.stages:
            yield from stage.plain_named_parameters()

    def own_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the same without the last stage's copy of a tied weight: over all ranks of a pipeline each
        parameter comes once.
        """
        second = self.tied_copy
        for name, parameter in self.plain_named_parameters():
            if parameter is not second:
                yield name, parameter

    @property
    def tied(self) -> nn.Parameter | None:
        """The embedding that is tied to the head, if the first stage is here and the model has one."""
        return self._tied(first=True)

    @property
    def tied_copy(self) -> nn.Parameter | None:
        """The head's copy of it, if the last stage is here."""
        return self._tied(first=False)

    def refresh_compute_weights(self) -> None:
        """Cast the masters into the low-precision copies again."""
        for stage in self.stages:
            stage.refresh_compute_weights()

    def notes(self) -> dict[str, str]:
        """Return how these stages compute, by subject: for the log."""
        notes: dict[str, str] = {}
        for stage in self.stages:
            notes |= stage.notes()
        return notes

    def _tied(self, *, first: bool) -> nn.Parameter | None:
        for stage in self.stages:
            if stage.tied_name is not None and (stage.first if first else stage.last):
                hf = stage.hf
                weight = (hf.get_input_embeddings() if first else hf.get_output_embeddings()).weight
                assert isinstance(weight, nn.Parameter)
                return weight
        return None
