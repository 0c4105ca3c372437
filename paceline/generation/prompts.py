"""The distinct prompts of a batch of requests, padded on the left: each is read once for all its answers. For
models whose layers pass a state from token to token, by length and without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from paceline.generation.engine import Request


@dataclass(frozen=True)
class PromptPart:
    """Prompts that are read in one forward: ``ids``, ``positions``, ``seen`` as in ``PromptBatch``."""

    ids: Tensor
    positions: Tensor
    seen: Tensor | None


class PromptBatch:
    """P prompts, shorter ones first, of up to ``width`` tokens.

    ids        int64 [P, width], padded on the left
    positions  int64 [P, width]
    seen       int64 [P, width], 0 at padding; None if there is none
    of_row     int64 [requests], the prompt of each
    repeated   whether rows and prompts are not one to one
    """

    def __init__(self, requests: Sequence[Request], pad_id: int, device: torch.device) -> None:
        prompts = sorted(dict.fromkeys(r.prompt for r in requests), key=len)
        number = {prompt: i for i, prompt in enumerate(prompts)}
        rows = [number[r.prompt] for r in requests]
        self.width = max(map(len, prompts))
        ids = torch.full((len(prompts), self.width), pad_id, dtype=torch.int64)
        seen = torch.zeros_like(ids)
        for i, prompt in enumerate(prompts):
            ids[i, self.width - len(prompt) :] = torch.tensor(prompt)
            seen[i, self.width - len(prompt) :] = 1
        padded = any(len(p) != self.width for p in prompts)
        self.ids, self.positions = ids.to(device), (seen.cumsum(1) - 1).clamp_(min=0).to(device)
        self.seen = seen.to(device) if padded else None
        self.of_row = torch.tensor(rows, device=device)
        self.repeated = rows != list(range(len(prompts)))
        self.lengths = [len(prompt) for prompt in prompts]

    def all(self) -> PromptPart:
        """All of them."""
        return PromptPart(self.ids, self.positions, self.seen)


def by_length(prompts: PromptBatch) -> list[PromptPart]:
    """Return the prompts of each length without padding, in their order."""
    found, start = [], 0
    for length, group in groupby(prompts.lengths):
        end = start + len(list(group))
        rows = slice(start, end), slice(prompts.width - length, None)
        found.append(PromptPart(prompts.ids[rows], prompts.positions[rows], None))
        start = end
    return found
