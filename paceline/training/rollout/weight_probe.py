"""Whether a generation server computes with the weights that it was sent: its log-probabilities of fixed
texts against the trained model's.

The texts are drawn from a fixed seed. A prefix that fills a block of the server's cache is asked before and
after each change. Only there does an answer show that comes from a cache that was not reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.remote import ServerEngine
from paceline.generation.score_texts import score_texts
from paceline.protocols.model import RootModule

TEXTS, TOKENS = 4, 16
PREFIX = 160  # more than a cache block: 16 tokens on GPUs, up to 128 on CPUs
GREEDY = 4
MARGIN = 3.0  # times the gap at the start
CHANGE = 0.05  # of a norm's weights, for the second of the three measurements


@dataclass(frozen=True)
class GapBounds:
    """Mean differences of log-probabilities, in nats: the least that is allowed later, the most at the start.

    Programs that compute alike differ by the order of their additions: 1e-6 in float32, 0.01 in 16 bit.
    """

    floor: float
    most: float


@dataclass(frozen=True)
class ServerScores:
    """What a server says: log-probabilities [68] of the texts and of the ``tokens`` after the prefix."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass
class WeightProbe:
    """Asks servers, and compares with the model. ``limits``: the largest gap of each server, by its place."""

    vocab_size: int
    positions: int
    bounds: GapBounds
    limits: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        noise = torch.Generator().manual_seed(0)
        length = max(1, min(PREFIX, self.positions - GREEDY - 1))
        tokens = min(TOKENS, self.positions - 2)
        drawn = torch.randint(self.vocab_size, (TEXTS * (tokens + 1) + length,), generator=noise).tolist()
        self.prefix = tuple(drawn[:length])
        rows = torch.tensor(drawn[length:]).view(TEXTS, tokens + 1).tolist()
        self.texts = [tuple(row) for row in rows]

    def fill_cache(self, engine: ServerEngine) -> None:
        """Have the server read the prefix with the weights that it has now."""
        engine.answer(Request(self.prefix, 0, 1), RolloutSampling(temperature=0.0))

    def query(self, engine: ServerEngine) -> ServerScores:
        """Return the server's log-probabilities. Raises PacelineError ``rollout.server_*``."""
        logprobs = [value for text in self.texts for value in engine.score(text)]
        written = engine.answer(Request(self.prefix, 0, GREEDY), RolloutSampling(temperature=0.0))
        return ServerScores(written.tokens, (*logprobs, *written.logprobs.tolist()))

    def of_model(self, root: RootModule, written: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Return the model's own, fp32 [68], for each server's tokens. Every rank calls it alike."""
        fixed = score_texts(root.hf, self.texts, 1, root.computing).flatten()
        after = {
            tokens: score_texts(
                root.hf, [(*self.prefix, *tokens)], len(self.prefix), root.computing
            ).flatten()
            for tokens in dict.fromkeys(written)
        }
        return [torch.cat((fixed, after[tokens])).cpu() for tokens in written]

    def gap(self, answered: ServerScores, own: Tensor) -> float:
        """Return the larger of two means of |server − model|: over the texts, and over the tokens after the
        prefix.
        """
        apart = (torch.tensor(answered.logprobs) - own).abs()
        fixed = len(own) - len(answered.tokens)
        return max(float(apart[:fixed].mean()), float(apart[fixed:].mean()))

    def moved(self, before: ServerScores, after: ServerScores) -> float:
        """Return the mean difference of a server's own answers to the fixed texts."""
        fixed = sum(len(text) - 1 for text in self.texts)
        return float(
            (torch.tensor(before.logprobs[:fixed]) - torch.tensor(after.logprobs[:fixed])).abs().mean()
        )

    def limit(self, place: int) -> float:
        """Return the largest gap allowed of a server; of one not measured, the others' largest."""
        return self.limits.get(place, max(self.limits.values(), default=self.bounds.most))

    def measured(self, place: int, gaps: Sequence[float], returned: float) -> str:
        """Take the limit from the gaps at θ, θ′, θ; return why the server cannot be trusted, or nothing.

        ``returned``: the mean difference of the server's own answers at the first and at the second θ.
        """
        first, changed, again = gaps
        noise = max(first, again)
        limit = max(self.bounds.floor, MARGIN * noise)
        if noise > self.bounds.most:
            return f"its log-probabilities differ by {noise:.3g} nats at the start"
        if changed > limit:
            return f"after a change of every norm they differ by {changed:.3g} nats, before it by {first:.3g}"
        if returned > limit:
            return f"with the first weights again it answers otherwise than at first, by {returned:.3g} nats"
        self.limits[place] = limit
        return ""


@contextmanager
def changed_norms(root: RootModule) -> Iterator[None]:
    """Inside, every vector among the weights (norms, biases) is another; afterwards the same, bit for bit."""
    vectors = [
        p for n, p in root.hf.named_parameters() if p.ndim == 1 and p.is_floating_point() and p.numel()
    ]
    if not vectors:  # a model without norms' weights: its last matrix
        vectors = [p for p in root.hf.parameters() if p.is_floating_point()][-1:]
    kept = [p.detach().clone() for p in vectors]
    with torch.no_grad():
        for place, vector in enumerate(vectors):
            sign = 1 - 2 * (place % 2)
            vector.add_(sign * CHANGE * (1 + vector.float().abs().mean().to(vector.dtype)))
    try:
        yield
    finally:
        with torch.no_grad():
            for vector, value in zip(vectors, kept, strict=True):
                vector.copy_(value)
