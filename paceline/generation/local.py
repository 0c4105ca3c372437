"""Batched generation with the local model: left padding, one prefill per prompt, a key-value cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.generation import codes
from paceline.generation.cache import preallocated_cache, select_rows
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.sampling import choose

if TYPE_CHECKING:
    from transformers import DynamicCache

    from paceline.protocols.model import HFModel

_THIN = 0.75  # fraction of rows still generating at which finished ones are removed from the batch


class LocalEngine:
    """``GenerationEngine`` over a Hugging Face causal language model, local or (with ``agree``) sharded.

        stop_ids   tokens that end an answer; none: answers end at their maximum length
        rows       answers decoded together
        agree      if a forward is a collective: "does any rank continue?", called before every forward
        computing  context manager around the model's forward (``RoleModule.computing``)

    With ``agree`` a rank without work runs dummy forwards of one token until all ranks are done, so that
    ranks whose answers differ in length or number finish together. Raises ConfigError ``generation.stateful``
    for models with a recurrent state instead of keys and values.
    """

    def __init__(
        self,
        hf: HFModel,
        *,
        pad_id: int,
        stop_ids: Sequence[int],
        rows: int = 64,
        agree: Callable[[bool], bool] | None = None,
        computing: Callable[[str], torch.autocast | nullcontext[None]] | None = None,
    ) -> None:
        self.hf, self.pad_id, self.rows, self.agree, self.computing = hf, pad_id, rows, agree, computing
        self.device: torch.device = next(hf.parameters()).device
        self.stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=self.device)

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]:
        """Return one completion per request, in order. Collective with ``agree``."""
        nothing = torch.zeros(0, dtype=torch.float32)
        done: list[Completion] = [Completion((), nothing, False)] * len(requests)
        wanted = [i for i, request in enumerate(requests) if request.max_tokens > 0]
        # batch equal lengths and equal prompts together
        wanted.sort(key=lambda i: (len(requests[i].prompt), requests[i].prompt))
        waiting = [wanted[start : start + self.rows] for start in range(0, len(wanted), self.rows)]
        running: tuple[list[int], _Decoding] | None = None
        # One forward an iteration on every rank: a step of the running batch, or a dummy while others work.
        while self._goes_on(bool(waiting) or running is not None):
            if running is None and waiting:
                chunk = waiting.pop(0)
                running = chunk, _Decoding(self, [requests[i] for i in chunk], sampling)
            if running is None:
                self.forward(torch.full((1, 1), self.pad_id, device=self.device), None, None, None)
            elif running[1].advance():
                for i, completion in zip(running[0], running[1].completions(), strict=True):
                    done[i] = completion
                running = None
        return done

    def _goes_on(self, mine: bool) -> bool:
        return mine if self.agree is None else self.agree(mine)

    def forward(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor | None, cache: DynamicCache | None
    ) -> Tensor:
        """Return logits [B, V] of the last position."""
        with self.computing(self.device.type) if self.computing else nullcontext():
            out = self.hf(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=1,
            )
        logits: Tensor = out.logits[:, -1]
        return logits


class _Decoding:
    """One batch of requests being decoded; each row is a request."""

    def __init__(self, engine: LocalEngine, requests: Sequence[Request], sampling: RolloutSampling) -> None:
        self.engine, self.requests, self.sampling = engine, requests, sampling
        device = engine.device
        prompts = list(dict.fromkeys(r.prompt for r in requests))
        number = {prompt: i for i, prompt in enumerate(prompts)}
        self.prompts = prompts
        self.of_prompt = torch.tensor([number[r.prompt] for r in requests], device=device)
        self.longest = max(r.max_tokens for r in requests)
        self.limits = torch.tensor([r.max_tokens for r in requests], device=device)
        self.streams = torch.tensor([r.stream for r in requests], dtype=torch.int64, device=device)
        self.width = max(map(len, prompts))
        self.cache = cache_for(engine.hf, self.width + self.longest)
        self.rows = torch.arange(len(requests), device=device)  # requests still in the batch
        # of these, the ones still generating
        self.going = torch.ones(len(requests), dtype=torch.bool, device=device)
        self.tokens = torch.zeros(len(requests), self.longest, dtype=torch.int64, device=device)
        self.logprobs: Tensor | None = None
        self.lengths = torch.zeros(len(requests), dtype=torch.int64, device=device)
        self.ended = torch.zeros(len(requests), dtype=torch.bool, device=device)
        self.place = 0
        self.mask: Tensor | None = None
        self.position = torch.tensor([len(r.prompt) for r in requests], device=device)

    def advance(self) -> bool:
        """Run one forward and append one token per row; return whether all are done."""
        logits = self._read_prompts() if self.place == 0 else self._next()
        streams, places = self.streams[self.rows], torch.full_like(self.rows, self.place)
        chosen, logprobs = choose(logits, self.sampling, streams, places)
        if self.logprobs is None:
            self.logprobs = torch.zeros(self.tokens.shape, dtype=logprobs.dtype, device=logprobs.device)
        # Append to the unfinished answers, then mark those that end with this token.
        writes = self.rows[self.going]
        self.tokens[writes, self.place] = chosen[self.going]
        self.logprobs[writes, self.place] = logprobs[self.going]
        self.lengths[writes] = self.place + 1
        stopped = torch.isin(chosen, self.engine.stops)
        self.ended[writes] = stopped[self.going]
        self.going &= ~stopped & (self.limits[self.rows] > self.place + 1)
        self.last = chosen
        self.place += 1
        count = int(self.going.sum())
        # Shrink the batch once enough rows are finished.
        if count and count <= _THIN * len(self.rows):
            self._drop_finished()
        return count == 0

    def completions(self) -> list[Completion]:
        """Return the answers, one per request."""
        assert self.logprobs is not None
        tokens, logprobs = self.tokens.tolist(), self.logprobs.cpu()
        return [
            Completion(tuple(tokens[i][:n]), logprobs[i, :n].clone(), bool(self.ended[i]))
            for i, n in enumerate(self.lengths.tolist())
        ]

    def _read_prompts(self) -> Tensor:
        """Prefill each distinct prompt once, repeat its cache for each of its answers.

        Return logits [B, V].
        """
        device, count = self.engine.device, len(self.prompts)
        ids = torch.full((count, self.width), self.engine.pad_id, dtype=torch.int64)
        mask = torch.zeros(count, self.width + self.longest, dtype=torch.int64)
        for i, prompt in enumerate(self.prompts):
            ids[i, self.width - len(prompt) :] = torch.tensor(prompt)
            mask[i, self.width - len(prompt) :] = 1
        padded = any(len(p) != self.width for p in self.prompts)
        self.mask = mask.to(device) if padded else None
        seen = None if self.mask is None else self.mask[:, : self.width]
        positions = (mask[:, : self.width].cumsum(1) - 1).clamp_(min=0).to(device)
        logits = self.engine.forward(ids.to(device), seen, positions, self.cache)
        if count != len(self.requests) or not torch.equal(self.of_prompt, self.rows):
            select_rows(self.cache, self.of_prompt)
            logits = logits[self.of_prompt]
            self.mask = None if self.mask is None else self.mask[self.of_prompt]
        return logits

    def _next(self) -> Tensor:
        seen = None if self.mask is None else self.mask[:, : self.width + self.place]
        positions = (self.position + self.place - 1)[self.rows]
        return self.engine.forward(self.last[:, None], seen, positions[:, None], self.cache)

    def _drop_finished(self) -> None:
        """Remove finished rows from the batch and the cache."""
        keep = self.going.nonzero().squeeze(1)
        select_rows(self.cache, keep)
        self.mask = None if self.mask is None else self.mask[keep]
        self.rows, self.last, self.going = self.rows[keep], self.last[keep], self.going[keep]


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
