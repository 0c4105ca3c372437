"""How a rollout is laid out: its answers over optimizer steps, and the prompt of each group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field

from paceline.core.json_types import Json, JsonObject
from paceline.data.packed_source import PackedSource
from paceline.training.loop.window_source import BatchLayout


@dataclass(frozen=True)
class RolloutLayout:
    """A rollout is ``updates`` optimizer steps of ``batch_layout.global_batch`` answers, repeated ``passes``
    times; each prompt has ``group`` answers.
    """

    batch_layout: BatchLayout
    group: int
    updates: int
    passes: int

    @property
    def answers(self) -> int:
        """Answers per rollout, over all ranks."""
        return self.updates * self.batch_layout.global_batch

    @property
    def groups(self) -> int:
        """Prompts per rollout."""
        return self.answers // self.group

    @property
    def steps(self) -> int:
        """Optimizer steps per rollout."""
        return self.updates * self.passes


class AnswerRows:
    """The rows of an epoch as training counts them: answers times passes.

    For counting epochs only (``CountedRows``).
    """

    def __init__(self, prompts: PackedSource, batch_layout: RolloutLayout, drop_last: bool) -> None:
        self.prompts, self.batch_layout, self.drop_last = prompts, batch_layout, drop_last

    def num_rows(self, epoch: int) -> int:
        """Return a multiple of the global batch: rollouts are whole, the last one is padded or dropped."""
        answers = self.prompts.num_rows(epoch) * self.batch_layout.group
        rollouts = (
            answers // self.batch_layout.answers
            if self.drop_last
            else -(-answers // self.batch_layout.answers)
        )
        return rollouts * self.batch_layout.answers * self.batch_layout.passes


@dataclass(frozen=True)
class Prompt:
    """A prompt of an epoch; ``document`` is -1 beyond its end."""

    epoch: int
    document: int


@dataclass
class PromptSampler:
    """The prompt of each group of the current rollout (``prompts_of_groups``), the same on every rank.

    Without ``again``, group g of rollout ``number`` of an epoch gets prompt number · groups + g of that
    epoch's order, if it exists. With it, prompts are taken in order, continuing into the next epoch. A group
    without a learning signal gets the next prompt (DAPO's dynamic sampling, Yu et al. 2025, arXiv:2503.14476,
    § 3.2): the next prompt then depends on how many were taken, which a checkpoint keeps (``state``).
    """

    prompts: PackedSource
    groups: int
    again: bool
    saved: InitVar[JsonObject]  # the checkpoint's ``state``
    prompts_of_groups: list[Prompt] = field(default_factory=list, init=False)
    _next: tuple[int, int] | None = field(default=None, init=False)  # epoch and position of the next prompt

    def __post_init__(self, saved: JsonObject) -> None:
        if self.again and saved:
            prompts = saved["asked"]
            assert isinstance(prompts, list), "as ``state`` wrote it"
            self.prompts_of_groups = [Prompt(*_pair(each)) for each in prompts]
            self._next = _pair(saved["next"])

    def begin(self, epoch: int, number: int) -> None:
        """Take the prompts of a new rollout."""
        if not self.again:
            self.prompts_of_groups = self._at(epoch, range(number * self.groups, (number + 1) * self.groups))
            return
        if self._next is None:  # the first rollout of the run, or since resampling was enabled
            # Where the order without resampling would be.
            self._next = (epoch, number * self.groups)
        self.prompts_of_groups = self._take(self.groups)

    @contextmanager
    def undone_by(self, error: type[Exception]) -> Iterator[None]:
        """Inside, undo the draws if ``error`` is raised: a checkpoint saved then starts with that rollout."""
        # A copy: ``replace`` changes the list in place.
        before = self._next, list(self.prompts_of_groups)
        try:
            yield
        except error:
            self._next, self.prompts_of_groups = before
            raise

    def resume(self, epoch: int, number: int) -> None:
        """Take the prompts of a rollout during which the checkpoint was saved."""
        if not self.prompts_of_groups:
            self.begin(epoch, number)

    def replace(self, groups: Sequence[int]) -> None:
        """Give ``groups``, in their order, the next prompts."""
        for group, prompt in zip(groups, self._take(len(groups)), strict=True):
            self.prompts_of_groups[group] = prompt

    def state(self) -> JsonObject:
        """Return what a checkpoint must hold (JSON); empty if prompts follow from the step."""
        if self._next is None:
            return {}
        return {
            "next": list(self._next),
            "asked": [[each.epoch, each.document] for each in self.prompts_of_groups],
        }

    def _take(self, count: int) -> list[Prompt]:
        assert self._next is not None
        epoch, position = self._next
        taken: list[Prompt] = []
        while len(taken) < count:
            end = min(self.prompts.num_rows(epoch), position + count - len(taken))
            taken += self._at(epoch, range(position, end))
            epoch, position = (epoch, end) if len(taken) == count else (epoch + 1, 0)
        self._next = (epoch, position)
        return taken

    def _at(self, epoch: int, positions: range) -> list[Prompt]:
        return [Prompt(epoch, i) for i in self.prompts.document_ids(epoch, list(positions))]


def _pair(saved: Json) -> tuple[int, int]:
    """Return two integers that ``state`` wrote. Raises ValueError for anything else."""
    match saved:
        case [int(first), int(second)]:
            return first, second
    raise ValueError(f"no pair of integers: {saved!r}")
