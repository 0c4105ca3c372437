"""The answers of a rollout before training: scored, compared, resampled; their metrics and log rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.algorithms.rewards.builtin import Sample
from paceline.algorithms.rewards.scoring import Scored
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import JsonObject
from paceline.generation.engine import Completion, Request
from paceline.protocols.rollout import OnPolicyObjective


@dataclass(frozen=True)
class RolloutRewards:
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
    def of(table: Tensor, labels: Sequence[str]) -> RolloutRewards:
        """Build from table rows: real, length, ended, score, parts…, whether score and parts are known."""
        count = 1 + len(labels)
        values, is_known = table[3 : 3 + count], table[3 + count :] > 0
        numbers = torch.where(is_known, values, torch.nan)
        return RolloutRewards(table[0] > 0, table[1], table[2] > 0, numbers[0], is_known[0], numbers[1:])

    def only(self, there: Tensor) -> RolloutRewards:
        """Return the entries where ``there`` (bool [R]) is true."""
        return RolloutRewards(*[values[..., there] for values in self._fields()])

    def replaced(self, other: RolloutRewards, there: Tensor) -> RolloutRewards:
        """Return a copy with ``other``'s values where ``there`` (bool [R]) is true."""
        pairs = zip(other._fields(), self._fields(), strict=True)
        return RolloutRewards(*(torch.where(there, theirs, mine) for theirs, mine in pairs))

    @staticmethod
    def joined(parts: Sequence[RolloutRewards]) -> RolloutRewards:
        """Concatenate ``parts``."""
        return RolloutRewards(
            *(torch.cat(same, -1) for same in zip(*(part._fields() for part in parts), strict=True))
        )

    def parts_differ(self, size: int) -> bool:
        """Whether a function gave answers of one group of ``size`` different rewards."""
        # [functions, groups, size]
        parts = self.parts.view(len(self.parts), -1, size)
        highest, lowest = parts.nan_to_num(-torch.inf).amax(-1), parts.nan_to_num(torch.inf).amin(-1)
        return bool((highest > lowest).any())

    def _fields(self) -> tuple[Tensor, ...]:
        return self.real, self.lengths, self.ended, self.scores, self.judged, self.parts


def report_metrics(
    judged: RolloutRewards, spread: Tensor | None, labels: Sequence[str], groups: Tensor
) -> dict[str, float]:
    """Return the metrics of a rollout.

    ``reward`` is the mean of all scores. ``reward_std`` is the mean over prompts of ``spread``, the std
    within their answers. If answers are not compared (None), it is the std of all scores.
    """
    real, lengths = judged.real, judged.lengths[judged.real]
    scores = judged.scores[judged.judged]
    metrics = {
        "reward": _mean(scores),
        **({"reward_std": _spread(scores)} if spread is None else _within(judged, spread, groups)),
        "completion_length": _mean(lengths),
        "completion_length_max": float(lengths.max()) if lengths.numel() else 0.0,
        "completion_length_min": float(lengths.min()) if lengths.numel() else 0.0,
        "truncated": _mean((~judged.ended[real]).double()),
        "left_out": float((real & ~judged.judged).sum()),
    }
    for label, values in zip(labels, judged.parts, strict=True):
        scored = values[~torch.isnan(values)]
        metrics[f"reward/{label}"] = _mean(scored)
        metrics[f"reward_std/{label}"] = _spread(scored)
    return metrics


def _within(judged: RolloutRewards, spread: Tensor, groups: Tensor) -> dict[str, float]:
    """Return metrics over the prompts that have a scored answer."""
    has_score = torch.zeros(int(groups.max()) + 1, dtype=torch.bool).index_put_(
        (groups[judged.judged],), torch.tensor(True)
    )
    # groups are sorted: the first answer of each has its spread
    spreads = spread[torch.searchsorted(groups, torch.arange(len(has_score)))][has_score]
    return {"reward_std": _mean(spreads), "zero_spread": _mean((spreads == 0).double())}


def _spread(values: Tensor) -> float:
    return float(values.std()) if values.numel() > 1 else 0.0


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if values.numel() else 0.0


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHOWN_CHARACTERS = 2000
_HALF_A_CHARACTER = "\ufffd"  # what a tokenizer writes for bytes that are no whole character yet


@dataclass(frozen=True)
class LoggedCompletions:
    """Answers of one rank, some of which are logged: ``samples``, their ``scored``, their ``completions``."""

    samples: Sequence[Sample]
    scored: Scored
    completions: Sequence[Completion]

    def rows(self, count: int, tokenizer: PreTrainedTokenizerBase) -> list[JsonObject]:
        """Return the first ``count`` answers with their rewards, texts cut to 2,000 characters.

        ``token_ends``: the characters of ``completion`` up to the end of each token; ``logprobs``: the log
        probability with which each of them was sampled (nats). Both are left out where the joined texts of
        the tokens are not the answer's.
        """
        return [self._row(i, tokenizer) for i in range(min(count, len(self.samples)))]

    def _row(self, i: int, tokenizer: PreTrainedTokenizerBase) -> JsonObject:
        sample, completion = self.samples[i], self.completions[i]
        row: JsonObject = {
            "prompt": sample.prompt[-_SHOWN_CHARACTERS:],
            "completion": sample.completion[:_SHOWN_CHARACTERS],
            "answer": str(sample.columns.get("answer", ""))[-_SHOWN_CHARACTERS:],
            "reward": _shown(self.scored.total[i]),
            "tokens": sample.num_tokens,
            "ended": sample.ended,
        }
        row |= {f"reward/{label}": _shown(values[i]) for label, values in self.scored.parts.items()}
        ends = token_ends(tokenizer, completion.tokens, sample.completion[:_SHOWN_CHARACTERS])
        if ends:
            row["token_ends"] = [*ends]
            row["logprobs"] = [round(value, 3) for value in completion.logprobs[: len(ends)].tolist()]
        return row


def token_ends(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], text: str) -> list[int]:
    """Return, for each token up to the end of ``text``, the characters of ``text`` up to its end.

    A character made of several tokens belongs to the last of them. [] where the joined texts of the tokens
    are not ``text``.
    """

    def read(begin: int, end: int) -> str:
        return str(tokenizer.decode(list(tokens[begin:end]), skip_special_tokens=True))

    ends: list[int] = []
    begin = complete = position = (
        0  # a tokenizer may write a token by what stands before it: it is read with the last one
    )
    for i in range(1, len(tokens) + 1):
        if position >= len(text) and len(text) == _SHOWN_CHARACTERS:
            break
        # Decoded with what stands before: alone, a token may lose its space.
        previous, now = read(begin, complete), read(begin, i)
        piece = now[len(previous) :]
        if i == len(tokens) or not now.endswith(_HALF_A_CHARACTER):
            if text[position : position + len(piece)] != piece[: len(text) - position]:
                return []
            position, begin, complete = min(len(text), position + len(piece)), complete, i
        ends.append(position)
    return ends if position == len(text) else []


def _shown(value: float) -> float | None:
    return None if math.isnan(value) else value


@dataclass
class ScoredRollout:
    """``written``: this rank's answers by place in the rollout, each with its prompt's document and request.

    ``judged``: the scores of all ranks. ``shown``: the answers of the first draw, some of which are logged;
    ``problems``: the rewards' warnings. ``compare`` fills ``advantages`` [R] and ``spread`` [R]. ``before``
    keeps replaced answers, so that metrics cover all generated answers and not only those with a gradient.
    """

    written: dict[int, tuple[int, Request, Completion]]
    judged: RolloutRewards
    shown: LoggedCompletions
    problems: list[Diagnostic]
    advantages: Tensor = field(default_factory=lambda: torch.zeros(0))
    spread: Tensor = field(default_factory=lambda: torch.zeros(0))
    before: list[tuple[RolloutRewards, Tensor]] = field(default_factory=list)

    def compare(self, algorithm: OnPolicyObjective, groups: Tensor) -> None:
        """Compute advantages and the spread of scores within each group."""
        self.advantages, self.spread = algorithm.compute_advantages(
            self.judged.scores, groups, self.judged.ended
        )

    def flat_groups(self, size: int) -> list[int]:
        """Return the groups without a learning signal (spread 0), ascending and equal on every rank."""
        return (self.spread.view(-1, size).amax(1) == 0).nonzero().flatten().tolist()

    def replace(self, again: ScoredRollout, groups: Tensor, flat: Sequence[int]) -> None:
        """Replace the answers of the groups ``flat`` by those of ``again``."""
        there = torch.isin(groups, torch.tensor(flat))
        # Kept before they are overwritten.
        self.before.append((self.judged.only(there), self.spread[there]))
        self.judged = self.judged.replaced(again.judged, there)
        self.written.update(again.written)
        self.problems += again.problems

    def metrics(self, labels: Sequence[str], size: int, *, compares: bool) -> dict[str, float]:
        """Return metrics over every generated answer, whether it is trained on or was replaced."""
        parts = [*self.before, (self.judged, self.spread)]
        everything = RolloutRewards.joined([judged for judged, _ in parts])
        spread = torch.cat([spread for _, spread in parts]) if compares else None
        return report_metrics(everything, spread, labels, torch.arange(len(everything.real)) // size)

    def counts(self, size: int) -> dict[str, float]:
        """Return the number of prompts drawn, and of the rollout's groups without a learning signal."""
        drawn = sum(len(judged.real) for judged, _ in self.before) + len(self.judged.real)
        return {"prompts_drawn": drawn / size, "prompts_left_flat": float(len(self.flat_groups(size)))}
