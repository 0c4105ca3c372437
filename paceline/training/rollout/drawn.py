"""The answers of a rollout on their way: written, judged, compared, some of them drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.algorithms.rewards.sample import Sample
from paceline.algorithms.rewards.scoring import Scored
from paceline.core.diagnostics import Diagnostic
from paceline.generation.engine import Completion, Request
from paceline.protocols.rollout import OnPolicyObjective
from paceline.training.rollout.report import Judged, report_metrics


@dataclass
class Drawn:
    """``written``: this rank's answers by their place in the rollout, each with its prompt's document and request. ``judged``: everybody's.

    ``shown``: what a log shows of the first draw; ``problems``: what rewards had to say. ``compare`` fills advantages [R] and spread [R]; ``before`` keeps
    what was drawn and replaced, so that numbers are told of all answers, not of those alone that teach something.
    """

    written: dict[int, tuple[int, Request, Completion]]
    judged: Judged
    shown: tuple[Sequence[Sample], Scored]
    problems: list[Diagnostic]
    advantages: Tensor = field(default_factory=lambda: torch.zeros(0))
    spread: Tensor = field(default_factory=lambda: torch.zeros(0))
    before: list[tuple[Judged, Tensor]] = field(default_factory=list)

    def compare(self, algorithm: OnPolicyObjective, groups: Tensor) -> None:
        """Advantages, and how far the scores of each group lie apart."""
        self.advantages, self.spread = algorithm.compute_advantages(self.judged.scores, groups, self.judged.ended)

    def flat_groups(self, size: int) -> list[int]:
        """The groups that teach nothing, ascending: the same on every rank."""
        found: list[int] = (self.spread.view(-1, size).amax(1) == 0).nonzero().flatten().tolist()
        return found

    def replace(self, again: Drawn, groups: Tensor, flat: Sequence[int]) -> None:
        """What ``again`` holds in the places of the groups ``flat``."""
        there = torch.isin(groups, torch.tensor(flat))
        self.before.append((self.judged.only(there), self.spread[there]))
        self.judged = self.judged.replaced(again.judged, there)
        self.written.update(again.written)
        self.problems += again.problems

    def metrics(self, labels: Sequence[str], size: int, *, compares: bool) -> dict[str, float]:
        """Of every answer that was drawn, whether it is trained on or was replaced."""
        parts = [*self.before, (self.judged, self.spread)]
        whole = Judged.joined([judged for judged, _ in parts])
        spread = torch.cat([spread for _, spread in parts]) if compares else None
        groups = torch.arange(len(whole.real)) // size
        return report_metrics(whole, spread, labels, groups)

    def counts(self, size: int) -> dict[str, float]:
        """Prompts that were drawn for this rollout, and those of its groups that teach nothing still."""
        drawn = sum(len(judged.real) for judged, _ in self.before) + len(self.judged.real)
        return {"prompts_drawn": drawn / size, "prompts_left_flat": float(len(self.flat_groups(size)))}
