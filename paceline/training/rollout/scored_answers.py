"""The answers of a rollout before training: generated, scored, compared, and some of them resampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.diagnostics import Diagnostic
from paceline.generation.engine import Completion, Request
from paceline.protocols.rollout import OnPolicyObjective
from paceline.training.rollout.metrics import Judged, report_metrics
from paceline.training.rollout.samples import Shown


@dataclass
class Drawn:
    """``written``: this rank's answers by place in the rollout, each with its prompt's document and request.

    ``judged``: the scores of all ranks. ``shown``: the answers of the first draw, of which a log shows some;
    ``problems``: the rewards' warnings. ``compare`` fills ``advantages`` [R] and ``spread`` [R]. ``before``
    keeps what was replaced, so that metrics cover all generated answers and not only those with a gradient.
    """

    written: dict[int, tuple[int, Request, Completion]]
    judged: Judged
    shown: Shown
    problems: list[Diagnostic]
    advantages: Tensor = field(default_factory=lambda: torch.zeros(0))
    spread: Tensor = field(default_factory=lambda: torch.zeros(0))
    before: list[tuple[Judged, Tensor]] = field(default_factory=list)

    def compare(self, algorithm: OnPolicyObjective, groups: Tensor) -> None:
        """Compute advantages and the spread of scores within each group."""
        self.advantages, self.spread = algorithm.compute_advantages(
            self.judged.scores, groups, self.judged.ended
        )

    def flat_groups(self, size: int) -> list[int]:
        """Return the groups without a learning signal (spread 0), ascending and equal on every rank."""
        found: list[int] = (self.spread.view(-1, size).amax(1) == 0).nonzero().flatten().tolist()
        return found

    def replace(self, again: Drawn, groups: Tensor, flat: Sequence[int]) -> None:
        """Replace the answers of the groups ``flat`` by those of ``again``."""
        there = torch.isin(groups, torch.tensor(flat))
        self.before.append((self.judged.only(there), self.spread[there]))
        self.judged = self.judged.replaced(again.judged, there)
        self.written.update(again.written)
        self.problems += again.problems

    def metrics(self, labels: Sequence[str], size: int, *, compares: bool) -> dict[str, float]:
        """Return metrics over every generated answer, whether it is trained on or was replaced."""
        parts = [*self.before, (self.judged, self.spread)]
        whole = Judged.joined([judged for judged, _ in parts])
        spread = torch.cat([spread for _, spread in parts]) if compares else None
        groups = torch.arange(len(whole.real)) // size
        return report_metrics(whole, spread, labels, groups)

    def counts(self, size: int) -> dict[str, float]:
        """Return the number of prompts drawn, and of the rollout's groups without a learning signal."""
        drawn = sum(len(judged.real) for judged, _ in self.before) + len(self.judged.real)
        return {"prompts_drawn": drawn / size, "prompts_left_flat": float(len(self.flat_groups(size)))}
