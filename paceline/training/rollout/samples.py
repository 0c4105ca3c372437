"""Some answers of a rollout as rows of an event: texts, rewards, and the probability of each token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.rewards.sample import Sample
from paceline.algorithms.rewards.scoring import Scored
from paceline.core.json_types import JsonObject
from paceline.generation.engine import Completion

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHOWN_CHARACTERS = 2000
_HALF_A_CHARACTER = "\ufffd"  # what a tokenizer writes for bytes that are no whole character yet


@dataclass(frozen=True)
class Shown:
    """Answers of one rank of which some are shown: ``samples``, their ``scored``, their ``completions``."""

    samples: Sequence[Sample]
    scored: Scored
    completions: Sequence[Completion]

    def rows(self, count: int, tokenizer: PreTrainedTokenizerBase) -> list[JsonObject]:
        """Return the first ``count`` answers with their rewards, texts cut to 2,000 characters.

        ``token_ends``: the characters of ``completion`` up to the end of each token; ``logprobs``: the log
        probability with which each of them was sampled (nats). Both are left out where the tokens' texts,
        read one after the other, are not the answer's.
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

    A character that several tokens make belongs to the last of them. [] where the tokens' texts, read one
    after the other, are not ``text``.
    """

    def read(begin: int, end: int) -> str:
        return str(tokenizer.decode(list(tokens[begin:end]), skip_special_tokens=True))

    ends: list[int] = []
    begin = whole = at = (
        0  # a tokenizer may write a token by what stands before it: it is read with the last one
    )
    for i in range(1, len(tokens) + 1):
        if at >= len(text) and len(text) == _SHOWN_CHARACTERS:
            break
        known, now = read(begin, whole), read(begin, i)
        piece = now[len(known) :]
        if i == len(tokens) or not now.endswith(_HALF_A_CHARACTER):
            if text[at : at + len(piece)] != piece[: len(text) - at]:
                return []
            at, begin, whole = min(len(text), at + len(piece)), whole, i
        ends.append(at)
    return ends if at == len(text) else []


def _shown(value: float) -> float | None:
    return None if math.isnan(value) else value
