"""Metrics of a rollout: rewards and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Judged:
    """All answers of a rollout by place [R], equal on every rank.

    real     whether there is an answer (not a filler)
    lengths  its tokens; ``ended``: whether it has an end-of-sequence token
    scores   the weighted sum of its rewards, NaN if it is left out
    judged   whether it has a score
    parts    [functions, R], NaN where a function gave none
    """

    real: Tensor
    lengths: Tensor
    ended: Tensor
    scores: Tensor
    judged: Tensor
    parts: Tensor

    @staticmethod
    def of(table: Tensor, labels: Sequence[str]) -> Judged:
        """Build from table rows: real, length, ended, score, parts…, whether score and parts are known."""
        count = 1 + len(labels)
        values, known = table[3 : 3 + count], table[3 + count :] > 0
        numbers = torch.where(known, values, torch.nan)
        return Judged(table[0] > 0, table[1], table[2] > 0, numbers[0], known[0], numbers[1:])

    def only(self, there: Tensor) -> Judged:
        """Return the places where ``there`` (bool [R]) is true."""
        own = [values[..., there] for values in self._fields()]
        return Judged(*own)

    def replaced(self, other: Judged, there: Tensor) -> Judged:
        """Return a copy with ``other``'s values where ``there`` (bool [R]) is true."""
        pairs = zip(other._fields(), self._fields(), strict=True)
        return Judged(*(torch.where(there, theirs, mine) for theirs, mine in pairs))

    @staticmethod
    def joined(parts: Sequence[Judged]) -> Judged:
        """Concatenate ``parts``."""
        return Judged(
            *(torch.cat(same, -1) for same in zip(*(part._fields() for part in parts), strict=True))
        )

    def _fields(self) -> tuple[Tensor, ...]:
        return self.real, self.lengths, self.ended, self.scores, self.judged, self.parts


def report_metrics(
    judged: Judged, spread: Tensor | None, labels: Sequence[str], groups: Tensor
) -> dict[str, float]:
    """Return the metrics of a rollout.

    ``reward`` is the mean of all scores; ``reward_std`` the mean over prompts of ``spread``, the std within
    their answers (None, if answers are not compared: the std of all scores).
    """
    real, lengths = judged.real, judged.lengths[judged.real]
    scores = judged.scores[judged.judged]
    found = {
        "reward": _mean(scores),
        **({"reward_std": _spread(scores)} if spread is None else _within(judged, spread, groups)),
        "completion_length": _mean(lengths),
        "completion_length_max": float(lengths.max()) if lengths.numel() else 0.0,
        "completion_length_min": float(lengths.min()) if lengths.numel() else 0.0,
        "truncated": _mean((~judged.ended[real]).double()),
        "left_out": float((real & ~judged.judged).sum()),
    }
    for label, values in zip(labels, judged.parts, strict=True):
        own = values[~torch.isnan(values)]
        found[f"reward/{label}"] = _mean(own)
        found[f"reward_std/{label}"] = _spread(own)
    return found


def _within(judged: Judged, spread: Tensor, groups: Tensor) -> dict[str, float]:
    """Return metrics over the prompts that have a scored answer."""
    whole = torch.zeros(int(groups.max()) + 1, dtype=torch.bool).index_put_(
        (groups[judged.judged],), torch.tensor(True)
    )
    spreads = spread[torch.searchsorted(groups, torch.arange(len(whole)))][whole]
    return {"reward_std": _mean(spreads), "zero_spread": _mean((spreads == 0).double())}


def _spread(values: Tensor) -> float:
    return float(values.std()) if values.numel() > 1 else 0.0


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if values.numel() else 0.0
