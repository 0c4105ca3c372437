"""Answers token by token, under the settings of OpenAI's and vLLM's APIs: penalties, biases, bounds, and
log-probabilities of the likeliest tokens.

The order is vLLM's (v1/sample/sampler.py): allowed tokens, least length, biases, penalties, temperature,
min-p, top-k, top-p. Log-probabilities are the model's, before any of these; with a grammar, over the tokens
that it allows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.generation.decoding.growing_cache import GrowingDecoding
from paceline.generation.decoding.layer_states import bounded_time_steps
from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.sampling.noise import gumbel
from paceline.generation.sampling.sample import keep_likeliest, largest

if TYPE_CHECKING:
    from paceline.generation.decoding.request_batch import WrittenAnswers
    from paceline.generation.local import LocalEngine

GREEDY = 1e-5  # below it a temperature is greedy
_LEAST = 1e-2  # a lower temperature divides logits beyond fp32
# Tokens of an answer that the cache has room for at first: most end before their maximum
_ROOM = 1024


class TokenGrammar(Protocol):
    """The grammar state of one answer; each token advances it."""

    def allowed(self) -> Tensor:
        """Return which token may come next: bool [V]."""
        ...

    def take(self, token: int) -> None:
        """Take the next token."""
        ...


@dataclass(frozen=True)
class TokenRules:
    """How tokens are chosen.

    bias      is added to logits of token ids
    allowed   the only token ids that are chosen, if any are named
    least     minimum number of tokens before any of ``ends`` may be chosen
    top       number of likeliest tokens whose log-probabilities are wanted; None: no log-probabilities
    grammar   makes the grammar of an answer; None: any tokens
    """

    sampling: RolloutSampling
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: tuple[int, ...] = ()
    least: int = 0
    ends: tuple[int, ...] = ()
    top: int | None = None
    grammar: Callable[[], TokenGrammar] | None = None


class TokenScore(NamedTuple):
    """A token id with its log-probability."""

    token: int
    logprob: float


class TokenStep(NamedTuple):
    """The next token of the answer to request ``number``; ``likeliest`` first; ``ended``: it is the last."""

    number: int
    token: int
    logprob: float
    likeliest: tuple[TokenScore, ...]
    ended: bool


class Stepwise:
    """The answers to ``requests``, which are written together."""

    def __init__(self, engine: LocalEngine, requests: Sequence[Request], rules: TokenRules) -> None:
        self.rules, self._requests, self._device = rules, requests, engine.device
        self._hf = engine.hf
        self._decoding = GrowingDecoding(engine, requests, rules.sampling, self._pick, _ROOM)
        self._chosen: list[tuple[int, int, float, tuple[TokenScore, ...]]] = []
        self._grammars = [rules.grammar() for _ in requests] if rules.grammar else []

    @torch.no_grad()
    def __iter__(self) -> Iterator[list[TokenStep]]:
        """Yield the tokens of each step, one of every answer that is not ended."""
        with bounded_time_steps(self._hf):
            done = False
            while not done:
                done = self._decoding.advance()
                answers = self._decoding.answers
                if answers is None:
                    continue
                going = set() if done else self._going(answers)
                yield [TokenStep(*chosen, chosen[0] not in going) for chosen in self._chosen]
                # Read again: the caller may have ended answers meanwhile.
                done = not bool(answers.going[: self._decoding.rows].any())

    def end(self, number: int) -> None:
        """End the answer to a request after the token that was yielded last."""
        assert self._decoding.answers is not None
        self._decoding.answers.end(number)

    def _going(self, answers: WrittenAnswers) -> set[int]:
        rows = self._decoding.rows
        going = answers.going[:rows].tolist()
        return {n for n, on in zip(answers.numbers(rows), going, strict=True) if on}

    def _pick(self, logits: Tensor, answers: WrittenAnswers) -> tuple[Tensor, Tensor]:
        rules, rows = self.rules, len(logits)
        # bf16 would round a penalty away.
        plain = logits if logits.dtype == torch.float64 else logits.float()
        numbers, length = answers.numbers(rows), int(answers.place)
        if self._grammars:
            plain = self._held(plain, answers, numbers)
        scores = self._ruled(plain, answers, numbers, length)
        if rules.sampling.temperature < GREEDY:
            tokens = largest(scores)
        else:
            scores = scores / max(rules.sampling.temperature, _LEAST)
            if rules.min_p > 0:
                # p ≥ min_p · p_max, in logarithms.
                bound = scores.amax(-1, keepdim=True) + math.log(rules.min_p)
                scores = scores.masked_fill(scores < bound, -torch.inf)
            # The same noise for equal seeds, whatever is written beside
            noise = gumbel(answers.streams[:rows], answers.place.expand(rows), scores.shape[-1])
            tokens = largest(keep_likeliest(scores, rules.sampling) + noise)
        logprobs = plain.gather(1, tokens[:, None]).squeeze(1) - plain.logsumexp(-1)
        self._note(plain, tokens, logprobs, answers, numbers)
        if self._grammars:
            for number, token, *_ in self._chosen:
                self._grammars[number].take(token)
        return tokens, logprobs

    def _held(self, plain: Tensor, answers: WrittenAnswers, numbers: list[int]) -> Tensor:
        """Return logits with -inf for tokens that the grammar of an unfinished answer forbids."""
        going = answers.going[: len(numbers)].tolist()
        # A finished answer's grammar is at its end, and would allow nothing.
        free = torch.ones(plain.shape[-1], dtype=torch.bool)
        allowed = [
            self._grammars[number].allowed() if on else free
            for number, on in zip(numbers, going, strict=True)
        ]
        return plain.masked_fill(~torch.stack(allowed).to(plain.device), -torch.inf)

    def _ruled(self, plain: Tensor, answers: WrittenAnswers, numbers: list[int], length: int) -> Tensor:
        """Return logits after the rules that also apply to greedy decoding."""
        rules, rows = self.rules, len(plain)
        scores = plain
        if rules.allowed:
            others = torch.ones(scores.shape[-1], dtype=torch.bool, device=scores.device)
            others[list(rules.allowed)] = False
            scores = scores.masked_fill(others, -torch.inf)
        if length < rules.least and rules.ends:
            scores = scores.index_fill(1, torch.tensor(rules.ends, device=scores.device), -torch.inf)
        if rules.bias:
            ids = torch.tensor(list(rules.bias), device=scores.device)
            values = torch.tensor(list(rules.bias.values()), dtype=scores.dtype, device=scores.device)
            scores = scores.index_add(1, ids, values.expand(rows, -1).contiguous())
        if rules.repetition != 1 or rules.frequency or rules.presence:
            written = answers.history(rows)
            # [B, V]: how often each token was written.
            counts = torch.zeros_like(scores).scatter_add_(
                1, written, torch.ones_like(written, dtype=scores.dtype)
            )
            if rules.repetition != 1:
                seen = (counts > 0) | self._in_prompts(numbers, scores)
                # By sign: a repeated token becomes less likely either way (Keskar et al. 2019,
                # arXiv:1909.05858).
                scaled = torch.where(scores > 0, scores / rules.repetition, scores * rules.repetition)
                scores = torch.where(seen, scaled, scores)
            scores = scores - rules.frequency * counts - rules.presence * (counts > 0)
        return scores

    def _in_prompts(self, numbers: list[int], scores: Tensor) -> Tensor:
        seen = torch.zeros_like(scores, dtype=torch.bool)
        for row, number in enumerate(numbers):
            seen[row, list(self._requests[number].prompt)] = True
        return seen

    def _note(
        self, plain: Tensor, tokens: Tensor, logprobs: Tensor, answers: WrittenAnswers, numbers: list[int]
    ) -> None:
        """Store the steps that ``__iter__`` yields, for answers that were unfinished before this token."""
        top = self.rules.top
        likeliest: list[tuple[TokenScore, ...]] = [()] * len(numbers)
        if top:
            values, ids = plain.log_softmax(-1).topk(top, -1)
            likeliest = [
                tuple(map(TokenScore, *pair)) for pair in zip(ids.tolist(), values.tolist(), strict=True)
            ]
        going = answers.going[: len(numbers)].tolist()
        chosen = zip(numbers, tokens.tolist(), logprobs.tolist(), likeliest, strict=True)
        self._chosen = list(itertools.compress(chosen, going))
