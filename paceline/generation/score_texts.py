"""Log-probabilities of given tokens by the local model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.generation.decoding.layer_states import bounded_time_steps

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


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
    ids = torch.tensor(list(texts), dtype=torch.int64, device=device)
    positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
    kept = ids.shape[1] - begin + 1
    with bounded_time_steps(hf), computing(device.type) if computing else nullcontext():
        logits = hf(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=kept).logits
    logprobs = (logits[:, -kept:-1].float() / temperature).log_softmax(-1)
    return logprobs.gather(2, ids[:, begin:, None])[..., 0]
