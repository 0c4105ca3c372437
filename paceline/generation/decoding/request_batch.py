"""A batch of requests as tensors: its distinct prompts, padded, and its growing answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from paceline.generation.engine import Completion, Request


class WrittenAnswers:
    """Answers of up to ``rows`` requests of up to ``longest`` tokens; row r of every tensor is one answer.

        streams    int64 [rows], the key of its noise
        last       int64 [rows], its last token
        position   int64 [rows], the place of ``last`` in prompt and answer; stands still once it is finished
        limits     int64 [rows], the position at which it ends; lowered to -1 by an end token
        going      bool [rows], whether it is unfinished
        place      int64 [1], the number of tokens that rows have been given

    ``append`` neither waits for the device nor depends on values: it can be captured in a graph.
    """

    def __init__(
        self, rows: int, longest: int, stops: Tensor, dtype: torch.dtype, device: torch.device
    ) -> None:
        """``stops``: int64, the tokens that end an answer; ``dtype``: of log-probabilities."""
        self.stops = stops
        self.streams, self.last, self.position, self.limits, self._order = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(5)
        )
        self.going = torch.zeros(rows, dtype=torch.bool, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        # [longest, rows]: a step writes one contiguous row.
        self._tokens = torch.zeros(longest, rows, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(longest, rows, dtype=dtype, device=device)
        self._requests: Sequence[Request] = ()
        self._rows = 0

    def begin(self, requests: Sequence[Request], rows: int) -> None:
        """Start the answers to ``requests`` in the first of ``rows`` rows; the others are finished."""
        self._requests, self._rows = requests, rows
        spare = [0] * (rows - len(requests))
        for tensor, values in (
            (self.streams, [r.stream for r in requests]),
            (self.position, [len(r.prompt) - 1 for r in requests]),
            (self.limits, [len(r.prompt) - 1 + r.max_tokens for r in requests]),
            (self.going, [1 for _ in requests]),
        ):
            tensor[:rows].copy_(torch.tensor([*values, *spare], dtype=tensor.dtype))
        torch.arange(rows, out=self._order[:rows])
        self.place.zero_()

    def append(self, tokens: Tensor, logprobs: Tensor) -> None:
        """Append a token to each of the first rows: int64 [n], with its log-probability [n]."""
        rows = slice(len(tokens))
        self._tokens[:, rows].index_copy_(0, self.place, tokens[None])
        self._logprobs[:, rows].index_copy_(0, self.place, logprobs[None])
        self.last[rows].copy_(tokens)
        # bool counts as 0 or 1: finished answers stand still.
        self.position[rows].add_(self.going[rows])
        # Below every position, so the next line ends the answer.
        self.limits[rows].masked_fill_((tokens[:, None] == self.stops).any(1), -1)
        torch.gt(self.limits[rows], self.position[rows], out=self.going[rows])
        self.place.add_(1)

    def numbers(self, rows: int) -> list[int]:
        """Return the request number of each of the first ``rows`` rows."""
        return [int(number) for number in self._order[:rows].tolist()]

    def history(self, rows: int) -> Tensor:
        """Return the tokens of the first ``rows`` rows so far, int64 [rows, tokens]."""
        return self._tokens[: int(self.place), :rows].t()

    def end(self, number: int) -> None:
        """End the answer to request ``number`` after its last token."""
        row = self._order == number
        self.limits.masked_fill_(row, -1)
        self.going.masked_fill_(row, False)

    def keep(self, rows: int, kept: int) -> Tensor:
        """Move the unfinished answers to the front of ``rows`` rows; at most ``kept`` are unfinished.

        Return which rows lie in the first ``kept`` rows now, int64 [kept].
        """
        # Stable: the order of the unfinished does not change.
        order = self.going[:rows].to(torch.uint8).argsort(descending=True, stable=True)
        for tensor in (self.streams, self.last, self.position, self.limits, self.going, self._order):
            tensor[:rows] = tensor[:rows][order]
        for history in (self._tokens, self._logprobs):
            history[:, :rows] = history[:, :rows][:, order]
        return order[:kept]

    def completions(self) -> list[Completion]:
        """Return the answers, one per request, in order."""
        count = len(self._requests)
        order, position = self._order[: self._rows].tolist(), self.position.tolist()
        tokens, logprobs = self._tokens.t().tolist(), self._logprobs.t().cpu()
        stops, by_request = set(self.stops.tolist()), {}
        for row, number in ((row, n) for row, n in enumerate(order) if n < count):  # others have no request
            # ``position`` began at the prompt's last token.
            length = position[row] - len(self._requests[number].prompt) + 1
            answer = tuple(tokens[row][:length])
            ended = bool(answer) and answer[-1] in stops
            by_request[number] = Completion(answer, logprobs[row, :length].clone(), ended)
        return [by_request[number] for number in range(count)]


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
        # Each once: GRPO asks every prompt several times
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
        # The first real token is at position 0; padding takes 0 too, unseen.
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
    parts, start = [], 0
    for length, group in groupby(prompts.lengths):
        end = start + len(list(group))
        rows = slice(start, end), slice(prompts.width - length, None)
        parts.append(PromptPart(prompts.ids[rows], prompts.positions[rows], None))
        start = end
    return parts
