"""Decoding on an accelerator: fixed shapes and addresses, one graph a step, and a host that does not wait.

The host launches steps, and every few tokens reads how many answers were unfinished some tokens earlier. Rows
and slots come in buckets, and a step is captured once for each pair of bucket sizes. Finished rows leave when
the unfinished ones fit into a smaller bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.generation.decoding.key_value_cache import StaticBuffers, obstacle
from paceline.generation.decoding.layer_states import cache_for
from paceline.generation.decoding.request_batch import PromptBatch, WrittenAnswers
from paceline.generation.decoding.step_graph import StepGraphs
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.sampling.kernels import why_no_kernels
from paceline.generation.sampling.sample import choose

if TYPE_CHECKING:
    from paceline.generation.local import LocalEngine

LOOK = 4  # tokens between two looks at how many answers are unfinished
_FEWEST = 128  # slots of the smallest bucket


class StaticPool:
    """Shared state of the batches of one ``generate`` call: buffers for the largest batch, and captured
    steps."""

    def __init__(
        self, engine: LocalEngine, batches: Sequence[Sequence[Request]], sampling: RolloutSampling
    ) -> None:
        self.engine, self.sampling = engine, sampling
        self.rows = max(map(len, batches))
        self.longest = max(r.max_tokens for batch in batches for r in batch)
        # The longest prompt and the longest answer of a batch may be of different rows, which share one
        # width.
        self._room = max(
            max(len(r.prompt) for r in batch) + max(r.max_tokens for r in batch) for batch in batches
        )
        self.no_kernels = why_no_kernels(engine.device)
        self.graphs = StepGraphs(engine.device, engine.no_graphs)
        self.buffers: StaticBuffers | None = None
        self.answers: WrittenAnswers | None = None

    def fill(self, requests: Sequence[Request], rows: int) -> None:
        """Read the prompts into the first of ``rows`` rows and choose every answer's first token."""
        engine = self.engine
        prompts = PromptBatch(requests, engine.pad_id, engine.device)
        read = cache_for(engine.hf, prompts.width)
        logits = engine.forward(prompts.ids, prompts.seen, prompts.positions, read)
        if self.buffers is None or self.answers is None:
            self.buffers = StaticBuffers(engine.hf.config, read, self.rows, self._room)
            dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
            self.answers = WrittenAnswers(self.rows, self.longest, engine.stops, dtype, engine.device)
        spare = torch.zeros(rows - len(requests), dtype=torch.int64, device=engine.device)
        # Spare rows repeat the first prompt, and are finished from the start.
        of_row = torch.cat([prompts.of_row, spare])
        self.buffers.fill(read, prompts, of_row)
        self.answers.begin(requests, rows)
        self._append(logits[of_row])

    def step(self, rows: int, needed: int, last: bool) -> None:
        """Append a token to each of the first rows; prompts and answers use the first ``needed`` slots.

        ``last``: no step follows, so nothing is captured.
        """
        slots = self.slots(needed)
        # A graph that would not be replayed is not worth its capture
        again = not last and self.slots(needed + 1) == slots
        self.graphs.run((rows, slots), lambda: self._step(rows, slots), again)

    def account(self) -> str:
        """Return how the steps were run, and why."""
        graphs, why = self.graphs, self.no_kernels
        sampled = "" if why is None else f"; sampled without kernels: {why}"
        if graphs.obstacle is not None:
            return f"with fixed buffers, not captured: {graphs.obstacle}{sampled}"
        return f"captured in {graphs.captured} graphs{sampled}"

    def slots(self, needed: int) -> int:
        """The bucket of slots: quarters of powers of two, at most the existing slots."""
        assert self.buffers is not None
        # Few buckets, since each is captured; fine ones, since unseen slots are computed, too
        quarter = max(_FEWEST // 4, 1 << max(0, (needed - 1).bit_length() - 3))
        return min(self.buffers.room, max(_FEWEST, -(-needed // quarter) * quarter))

    def rows_for(self, count: int) -> int:
        """Return the bucket for ``count`` rows: the next power of two, at most the largest batch."""
        return min(self.rows, 1 << max(0, count - 1).bit_length())

    def _step(self, rows: int, slots: int) -> None:
        buffers, answers = self.buffers, self.answers
        assert buffers is not None and answers is not None
        buffers.show(rows)
        ids, positions = answers.last[:rows, None], answers.position[:rows, None]
        masks, cache = buffers.masks(rows, slots), buffers.cache(rows, slots)
        self._append(self.engine.forward(ids, masks, positions, cache))
        buffers.move_on()

    def _append(self, logits: Tensor) -> None:
        answers = self.answers
        assert answers is not None
        rows = len(logits)
        places = answers.place.expand(rows)
        kernels = self.no_kernels is None
        answers.append(*choose(logits, self.sampling, answers.streams[:rows], places, kernels))


class StaticDecoding:
    """One batch of requests being decoded in the buffers of ``pool``."""

    def __init__(self, pool: StaticPool, requests: Sequence[Request]) -> None:
        self.pool, self.requests = pool, requests
        self.rows = pool.rows_for(len(requests))
        self.width = max(len(r.prompt) for r in requests)
        self.longest = max(r.max_tokens for r in requests)
        self.place = 0
        self._look: tuple[Tensor, Any] | None = None

    def advance(self) -> bool:
        """Run one forward and append one token per row; return whether all are known to be done."""
        if self.place == 0:
            self.pool.fill(self.requests, self.rows)
        else:
            self.pool.step(self.rows, self.width + self.place, self.place + 1 == self.longest)
        self.place += 1
        if self.place == self.longest:
            return True
        return self.place % LOOK == 0 and self._all_done()

    def completions(self) -> list[Completion]:
        """Return the answers, one per request."""
        assert self.pool.answers is not None
        return self.pool.answers.completions()

    def _all_done(self) -> bool:
        """Use the previous count of unfinished answers, start the next, and drop finished rows if a smaller
        bucket fits."""
        answers, buffers = self.pool.answers, self.pool.buffers
        assert answers is not None and buffers is not None
        count = self._read()
        if count == 0:
            return True
        fewer = self.rows if count is None else self.pool.rows_for(count)
        if fewer < self.rows:
            buffers.keep(answers.keep(self.rows, fewer))
            self.rows = fewer
        event = getattr(torch.get_device_module(self.pool.engine.device.type), "Event", None)
        # Read at the next look, when the copy has long arrived.
        copied = answers.going[: self.rows].sum().to("cpu", non_blocking=event is not None)
        recorded = None if event is None else event()
        if recorded is not None:
            recorded.record()
        self._look = copied, recorded
        return False

    def _read(self) -> int | None:
        if self._look is None:
            return None
        copied, event = self._look
        if event is not None:
            event.synchronize()
        return int(copied)


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
    reason = obstacle(engine.hf.config, cache_for(engine.hf, 1).layers)
    if reason is not None:
        return reason
    try:
        growing, fixed = _growing(engine), _fixed(engine)
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
        return f"its forward refuses them ({type(error).__name__}: {str(error).splitlines()[0][:120]})"
    expected, logits = growing.cpu().double(), fixed.cpu().double()  # some devices have no float64
    # A constant added to all logits changes no probability.
    wide = expected - expected.mean(-1, keepdim=True)
    apart = (expected - logits).norm(dim=-1) / wide.norm(dim=-1)
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
