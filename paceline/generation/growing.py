"""Decoding with a cache that grows by the token: a CPU's way, and that of models sharded over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.generation import codes
from paceline.generation.cache import preallocated_cache, select_rows
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.prompts import PromptBatch
from paceline.generation.sampling import choose
from paceline.generation.written import WrittenAnswers

if TYPE_CHECKING:
    from transformers import DynamicCache

    from paceline.generation.local import LocalEngine
    from paceline.protocols.model import HFModel

_THIN = 0.75  # fraction of rows still generating at which finished ones are removed from the batch


class GrowingDecoding:
    """One batch of requests being decoded; each row is a request. The host reads after every token how many
    are unfinished.
    """

    def __init__(self, engine: LocalEngine, requests: Sequence[Request], sampling: RolloutSampling) -> None:
        self.engine, self.sampling = engine, sampling
        self.prompts = PromptBatch(requests, engine.pad_id, engine.device)
        self.longest = max(r.max_tokens for r in requests)
        self.cache = cache_for(engine.hf, self.prompts.width + self.longest)
        self.rows, self.place = len(requests), 0
        self.requests = requests
        self.mask: Tensor | None = None
        self.answers: WrittenAnswers | None = None

    def advance(self) -> bool:
        """Run one forward and append one token per row; return whether all are done."""
        logits = self._read_prompts() if self.answers is None else self._next(self.answers)
        if self.answers is None:
            dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
            stops, device = self.engine.stops, self.engine.device
            self.answers = WrittenAnswers(self.rows, self.longest, stops, dtype, device)
            self.answers.begin(self.requests, self.rows)
        answers = self.answers
        places = answers.place.expand(self.rows)
        answers.append(*choose(logits, self.sampling, answers.streams[: self.rows], places))
        self.place += 1
        count = int(answers.going[: self.rows].sum())
        if count and count <= _THIN * self.rows:
            self._drop_finished(answers, count)
        return count == 0

    def completions(self) -> list[Completion]:
        """Return the answers, one per request."""
        assert self.answers is not None
        return self.answers.completions()

    def _read_prompts(self) -> Tensor:
        """Prefill each distinct prompt once, repeat its cache for each of its answers.

        Return logits [B, V].
        """
        prompts = self.prompts
        logits = self.engine.forward(prompts.ids, prompts.seen, prompts.positions, self.cache)
        if prompts.seen is not None:
            self.mask = torch.nn.functional.pad(prompts.seen, (0, self.longest), value=1)
        if prompts.repeated:
            select_rows(self.cache, prompts.of_row)
            logits = logits[prompts.of_row]
            self.mask = None if self.mask is None else self.mask[prompts.of_row]
        return logits

    def _next(self, answers: WrittenAnswers) -> Tensor:
        ids, positions = answers.last[: self.rows, None], answers.position[: self.rows, None]
        seen = None
        if self.mask is not None:
            seen = self.mask[:, : self.prompts.width + self.place]
        return self.engine.forward(ids, seen, positions, self.cache)

    def _drop_finished(self, answers: WrittenAnswers, count: int) -> None:
        """Remove finished rows from the batch and the cache."""
        keep = answers.keep(self.rows, count)
        select_rows(self.cache, keep)
        self.mask = None if self.mask is None else self.mask[keep]
        self.rows = count


def cache_for(hf: HFModel, room: int) -> DynamicCache:
    """Return an empty cache for ``hf`` with room for so many tokens.

    Raises ConfigError if the model keeps other state than keys and values: left padding would enter it.
    """
    from transformers.cache_utils import DynamicLayer

    cache = preallocated_cache(hf.config, room)
    strange = [type(layer).__name__ for layer in cache.layers if not isinstance(layer, DynamicLayer)]
    if strange:
        raise ConfigError(
            codes.GENERATION_STATEFUL(
                "this model passes a state from token to token, so rollouts of several prompts at"
                " once would mix padding into it",
                "model",
                f"{type(hf).__name__}: {strange[0]}",
                "use a model with attention layers (llama, qwen2, mistral, gemma, …)",
            )
        )
    return cache
