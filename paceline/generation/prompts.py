"""The distinct prompts of a batch of requests, padded on the left: each is read once for all its answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.generation.engine import Request


class PromptBatch:
    """P prompts of up to ``width`` tokens.

    ids        int64 [P, width], padded on the left
    positions  int64 [P, width]
    seen       int64 [P, width], 0 at padding; None if there is none
    of_row     int64 [requests], the prompt of each
    repeated   whether rows and prompts are not one to one
    """

    def __init__(self, requests: Sequence[Request], pad_id: int, device: torch.device) -> None:
        prompts = list(dict.fromkeys(r.prompt for r in requests))
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
