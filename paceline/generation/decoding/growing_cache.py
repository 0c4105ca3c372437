"""Decoding with a cache that grows by the token, for CPUs and for models sharded over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.generation.decoding.key_value_cache import joined, select_rows
from paceline.generation.decoding.layer_states import cache_for
from paceline.generation.decoding.request_batch import PromptBatch, WrittenAnswers, by_length
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.sampling.sample import choose

if TYPE_CHECKING:
    from transformers import DynamicCache

    from paceline.generation.local import LocalEngine

#: Choose the next tokens: (logits [B, V], answers so far) -> (tokens int64 [B], log-probabilities [B])
Pick = Callable[[Tensor, WrittenAnswers], tuple[Tensor, Tensor]]
_THIN = 0.75  # fraction of rows still generating at which finished ones are removed from the batch


class GrowingDecoding:
    """One batch of requests being decoded; each row is a request. After every token the host reads how many
    are unfinished. ``pick`` chooses tokens in place of ``sampling``; ``room``: tokens of an answer that the
    cache has room for before it grows.
    """

    def __init__(
        self,
        engine: LocalEngine,
        requests: Sequence[Request],
        sampling: RolloutSampling,
        pick: Pick | None = None,
        room: int | None = None,
    ) -> None:
        self.engine, self.sampling, self._pick = engine, sampling, pick or self._sample
        self.prompts = PromptBatch(requests, engine.pad_id, engine.device)
        self.longest = max(r.max_tokens for r in requests)
        self._room = self.longest if room is None else min(room, self.longest)
        self.rows, self.place = len(requests), 0
        # Padding would enter a state: there prompts of one length are read together, the longest last.
        self._unread = by_length(self.prompts) if engine.carries_state else [self.prompts.all()]
        self._read: list[tuple[DynamicCache, Tensor]] = []
        self.requests = requests
        self.mask: Tensor | None = None
        self.answers: WrittenAnswers | None = None

    def advance(self) -> bool:
        """Run one forward; once all prompts are read, append one token per row; return whether all are
        done.
        """
        if self._unread:
            self._read_prompts()
            if self._unread:
                return False
        logits = self._begin() if self.answers is None else self._next(self.answers)
        if self.answers is None:
            # As ``choose`` computes log-probabilities.
            dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
            stops, device = self.engine.stops, self.engine.device
            self.answers = WrittenAnswers(self.rows, self.longest, stops, dtype, device)
            self.answers.begin(self.requests, self.rows)
        answers = self.answers
        answers.append(*self._pick(logits, answers))
        self.place += 1
        count = int(answers.going[: self.rows].sum())
        # A smaller batch copies the whole cache: not for every row that ends
        if count and count <= _THIN * self.rows:
            self._drop_finished(answers, count)
        return count == 0

    def completions(self) -> list[Completion]:
        """Return the answers, one per request."""
        assert self.answers is not None
        return self.answers.completions()

    def _sample(self, logits: Tensor, answers: WrittenAnswers) -> tuple[Tensor, Tensor]:
        return choose(logits, self.sampling, answers.streams[: self.rows], answers.place.expand(self.rows))

    def _read_prompts(self) -> None:
        """Prefill the next prompts, each distinct one once."""
        part, engine = self._unread.pop(0), self.engine
        cache = cache_for(engine.hf, part.ids.shape[1] + self._room)
        self._read.append((cache, engine.forward(part.ids, part.seen, part.positions, cache)))

    def _begin(self) -> Tensor:
        """Repeat each prompt's cache for each of its answers. Return logits [B, V]."""
        prompts = self.prompts
        caches, each = zip(*self._read, strict=True)
        self._read, logits = [], torch.cat(each)
        self.cache = joined(caches, prompts.width + self._room) if len(caches) > 1 else caches[0]
        if prompts.seen is not None:
            # Once for the whole answer; each step takes a longer part of it.
            self.mask = torch.nn.functional.pad(prompts.seen, (0, self.longest), value=1)
        if prompts.repeated:
            select_rows(self.cache, prompts.of_row)
            # Prompts were read once each; from here on a row is an answer.
            logits = logits[prompts.of_row]
            self.mask = None if self.mask is None else self.mask[prompts.of_row]
        return logits

    def _next(self, answers: WrittenAnswers) -> Tensor:
        ids, positions = answers.last[: self.rows, None], answers.position[: self.rows, None]
        seen = None if self.mask is None else self.mask[:, : self.prompts.width + self.place]
        return self.engine.forward(ids, seen, positions, self.cache)

    def _drop_finished(self, answers: WrittenAnswers, count: int) -> None:
        """Remove finished rows from the batch and the cache."""
        keep = answers.keep(self.rows, count)
        select_rows(self.cache, keep)
        self.mask = None if self.mask is None else self.mask[keep]
        self.rows = count
