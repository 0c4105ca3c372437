"""Whether a model decodes with fixed buffers as it does with a growing cache: tried on two short prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.generation.decoding.cache_support import cache_for
from paceline.generation.decoding.static_cache import StaticBuffers, obstacle
from paceline.generation.engine import Request
from paceline.generation.prompts import PromptBatch

if TYPE_CHECKING:
    from paceline.generation.local import LocalEngine

_PROMPTS = ((3, 6), (5, 3, 4))  # unequal: one is padded; the shorter first, as PromptBatch has them
_STEPS = 2
_TOLERANCE = {
    torch.bfloat16: 0.25,
    torch.float16: 0.1,
}  # of the logits' spread; other attention kernels round


def why_not_static(engine: LocalEngine) -> str | None:
    """Return why ``engine``'s model cannot decode with fixed buffers, or None. Makes a few short forwards.

    Raises ConfigError as ``cache_for``.
    """
    config = engine.hf.config
    found = obstacle(config, cache_for(engine.hf, 1).layers)
    if found is not None:
        return found
    try:
        growing, fixed = _growing(engine), _fixed(engine)
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
        return f"its forward refuses them ({type(error).__name__}: {str(error).splitlines()[0][:120]})"
    one, other = growing.cpu().double(), fixed.cpu().double()  # some devices have no float64
    wide = one - one.mean(-1, keepdim=True)
    apart = (one - other).norm(dim=-1) / wide.norm(dim=-1)
    if bool((apart <= _TOLERANCE.get(growing.dtype, 1e-3)).all()):  # false for NaN
        return None
    return "its logits are others with them"


def _prompts(engine: LocalEngine) -> PromptBatch:
    top = engine.hf.config.get_text_config().vocab_size - 1
    requests = [Request(tuple(min(i, top) for i in prompt), 0, _STEPS) for prompt in _PROMPTS]
    return PromptBatch(requests, engine.pad_id, engine.device)


def _growing(engine: LocalEngine) -> Tensor:
    """Logits [rows, V] after the last step, as ``GrowingDecoding`` makes them."""
    prompts = _prompts(engine)
    assert prompts.seen is not None
    cache = cache_for(engine.hf, prompts.width + _STEPS)
    engine.forward(prompts.ids, prompts.seen, prompts.positions, cache)
    mask = torch.nn.functional.pad(prompts.seen, (0, _STEPS), value=1)
    for i in range(_STEPS):
        seen = mask[:, : prompts.width + i + 1]
        logits = engine.forward(prompts.ids[:, -1:], seen, prompts.positions[:, -1:] + i + 1, cache)
    return logits


def _fixed(engine: LocalEngine) -> Tensor:
    """The same with fixed buffers."""
    prompts = _prompts(engine)
    cache = cache_for(engine.hf, prompts.width)
    engine.forward(prompts.ids, prompts.seen, prompts.positions, cache)
    rows, room = len(_PROMPTS), prompts.width + _STEPS
    buffers = StaticBuffers(engine.hf.config, cache, rows, room)
    buffers.fill(cache, prompts, prompts.of_row)
    for i in range(_STEPS):
        buffers.show(rows)
        masks, views = buffers.masks(rows, buffers.room), buffers.cache(rows, buffers.room)
        logits = engine.forward(prompts.ids[:, -1:], masks, prompts.positions[:, -1:] + i + 1, views)
        buffers.move_on()
    return logits
