"""Which prompts a rollout asks: by their place in the epoch's order, or, where flat groups are drawn again, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from paceline.data.source import PackedSource


@dataclass(frozen=True)
class Prompt:
    """A prompt of an epoch's order; ``document`` is -1 beyond its end."""

    epoch: int
    document: int


@dataclass
class Draws:
    """The prompt of each group of the running rollout (``prompts_of_groups``), the same on every rank.

    Without ``again`` group g of rollout ``number`` of an epoch asks prompt number · groups + g of that epoch's order, if there is one. With it prompts are taken
    one after the other, on into the next epoch's order where one ends, and a group that teaches nothing takes the next one (DAPO's dynamic sampling, Yu
    et al. 2025, arXiv:2503.14476, § 3.2): which prompt comes next is a function of how many were taken, and is kept in a checkpoint (``state``).
    """

    prompts: PackedSource
    groups: int
    again: bool
    saved: InitVar[Mapping[str, Any]]  # what ``state`` gave to a checkpoint
    prompts_of_groups: list[Prompt] = field(default_factory=list, init=False)
    _next: tuple[int, int] | None = field(default=None, init=False)  # epoch and position of the prompt to be taken next

    def __post_init__(self, saved: Mapping[str, Any]) -> None:
        if self.again and saved:
            self.prompts_of_groups = [Prompt(*each) for each in saved["asked"]]
            self._next = (saved["next"][0], saved["next"][1])

    def begin(self, epoch: int, number: int) -> None:
        """The prompts of a new rollout."""
        if not self.again:
            self.prompts_of_groups = self._at(epoch, range(number * self.groups, (number + 1) * self.groups))
            return
        if self._next is None:  # the run's first one, or the first since groups are drawn again
            self._next = (epoch, number * self.groups)
        self.prompts_of_groups = self._take(self.groups)

    def resume(self, epoch: int, number: int) -> None:
        """Those of a rollout that a checkpoint was made in the middle of."""
        if not self.prompts_of_groups:
            self.begin(epoch, number)

    def replace(self, groups: Sequence[int]) -> None:
        """The next prompts in the place of those of ``groups``, in their order."""
        for group, prompt in zip(groups, self._take(len(groups)), strict=True):
            self.prompts_of_groups[group] = prompt

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold (JSON): nothing where prompts follow from the step."""
        if self._next is None:
            return {}
        return {"next": list(self._next), "asked": [[each.epoch, each.document] for each in self.prompts_of_groups]}

    def _take(self, count: int) -> list[Prompt]:
        assert self._next is not None
        epoch, position = self._next
        found: list[Prompt] = []
        while len(found) < count:
            end = min(self.prompts.num_rows(epoch), position + count - len(found))
            found += self._at(epoch, range(position, end))
            epoch, position = (epoch, end) if len(found) == count else (epoch + 1, 0)
        self._next = (epoch, position)
        return found

    def _at(self, epoch: int, positions: range) -> list[Prompt]:
        return [Prompt(epoch, i) for i in self.prompts.document_ids(epoch, list(positions))]
