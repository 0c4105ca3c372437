"""Batched generation with the local model: left padding, one prefill per prompt, a cache; and its scores.

Models that pass a state from token to token read prompts of one length together, without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.generation.decoding.growing_cache import GrowingDecoding
from paceline.generation.decoding.layer_states import STATES, bounded_time_steps, cache_name, counts_places
from paceline.generation.decoding.static_decoding import StaticDecoding, StaticPool, why_not_static
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.models.recurrent_layers import state_layers

if TYPE_CHECKING:
    from transformers import Cache

    from paceline.protocols.model import HFModel


Masks = Tensor | dict[str, Tensor]


def cut(rows: list[int], size: int) -> list[list[int]]:
    """Return ``rows`` in pieces of at most ``size``."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


class LocalEngine:
    """``GenerationEngine`` over a Hugging Face causal language model, local or (with ``agree``) sharded.

        stop_ids   tokens that end an answer; none: answers end at their maximum length
        rows       answers decoded together
        agree      if a forward is a collective: "does any rank continue?", called before every forward
        computing  context manager around the model's forward (``RoleModule.computing``)
        no_graphs  why steps are not to be captured in graphs, or None
        note       told after ``generate`` how steps were run, if that was a choice

    With ``agree`` a rank without work runs dummy forwards of one token until all ranks are done. So ranks
    whose answers differ in length or number finish together. On an accelerator without ``agree`` shapes and
    addresses are fixed (``StaticDecoding``). Raises ConfigError ``generation.stateful`` for models that keep
    a state outside of Transformers' cache.
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
        no_graphs: str | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.hf, self.pad_id, self.rows, self.agree, self.computing = hf, pad_id, rows, agree, computing
        self.device: torch.device = next(hf.parameters()).device
        self.stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=self.device)
        self.no_graphs = no_graphs
        if computing is not None and not isinstance(computing(self.device.type), nullcontext):
            # A graph would repeat the copies that it was captured with, not cast new weights.
            self.no_graphs = no_graphs or "autocast casts the weights in every forward"
        self.note = note
        self.carries_state = any(True for _ in state_layers(hf))
        self._cache_name = cache_name(hf) or "past_key_values"
        self._by_length = counts_places(hf)

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]:
        """Return one completion per request, in order. Collective with ``agree``."""
        with bounded_time_steps(self.hf):
            return self._generate(requests, sampling)

    def _generate(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]:
        done: list[Completion] = [Completion((), torch.zeros(0, dtype=torch.float32), False)] * len(requests)
        wanted = [i for i, request in enumerate(requests) if request.max_tokens > 0]
        # batch equal lengths and equal prompts together
        wanted.sort(key=lambda i: (len(requests[i].prompt), requests[i].prompt))
        alike = groupby(wanted, key=lambda i: len(requests[i].prompt) if self._by_length else 0)
        waiting = [chunk for _, those in alike for chunk in cut(list(those), self.rows)]
        running: tuple[list[int], GrowingDecoding | StaticDecoding] | None = None
        pool = self._pool([[requests[i] for i in chunk] for chunk in waiting], sampling)
        # One forward an iteration on every rank: a step of the running batch, or a dummy while others work.
        while self._goes_on(bool(waiting) or running is not None):
            if running is None and waiting:
                chunk = waiting.pop(0)
                batch = [requests[i] for i in chunk]
                decoding = StaticDecoding(pool, batch) if pool else GrowingDecoding(self, batch, sampling)
                running = chunk, decoding
            if running is None:
                self.forward(torch.full((1, 1), self.pad_id, device=self.device), None, None, None)
            elif running[1].advance():
                for i, completion in zip(running[0], running[1].completions(), strict=True):
                    done[i] = completion
                running = None
        if pool is not None:
            self.note(pool.account())
        return done

    def _pool(self, batches: list[list[Request]], sampling: RolloutSampling) -> StaticPool | None:
        """Return the pool for decoding with fixed shapes; None where that does not apply."""
        # Where ranks share a forward, its length differs from rank to rank.
        if self.device.type == "cpu" or self.agree is not None or not batches:
            return None
        reason = why_not_static(self)
        if reason is None:
            return StaticPool(self, batches, sampling)
        self.note(f"with a growing cache: {reason}")
        return None

    def _goes_on(self, mine: bool) -> bool:
        return mine if self.agree is None else self.agree(mine)

    def forward(
        self, ids: Tensor, mask: Masks | None, positions: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Return logits [B, V] of the last position."""
        caches = {self._cache_name: cache}
        if self._cache_name == STATES:  # no attention that could see padding, and no padding is read
            mask = None
        with self.computing(self.device.type) if self.computing else nullcontext():
            out = self.hf(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=cache is not None,
                logits_to_keep=1,
                **caches,
            )
        logits: Tensor = out.logits[:, -1]
        return logits


@torch.no_grad()
def score_texts(
    hf: HFModel,
    texts: Sequence[tuple[int, ...]],
    begin: int,
    computing: Callable[[str], torch.autocast | nullcontext[None]] | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return log p(text[i] | text[:i]) for i ≥ ``begin``, fp32 [texts, tokens - begin], in one forward, where
    logits are divided by ``temperature``.

    All texts have one length, above ``begin`` ≥ 1. Where a forward is collective every rank calls it with the
    same texts.
    """
    device = next(hf.parameters()).device
    # One length, so no padding and no mask.
    ids = torch.tensor(list(texts), dtype=torch.int64, device=device)
    positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
    # The logits at position i - 1 predict token i; the last ones predict nothing.
    kept = ids.shape[1] - begin + 1
    with bounded_time_steps(hf), computing(device.type) if computing else nullcontext():
        logits = hf(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=kept).logits
    logprobs = (logits[:, -kept:-1].float() / temperature).log_softmax(-1)
    return logprobs.gather(2, ids[:, begin:, None])[..., 0]
