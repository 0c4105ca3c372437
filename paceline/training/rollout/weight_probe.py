"""Check that a generation server uses the weights that it was sent: compare its log-probabilities of a fixed
text with the model's. For the training processes' own engine, compare its log-probabilities of its first
answers.

The text is drawn from a fixed seed and fills a block of the server's cache. It is read before a change, and
continued and scored after it: a cache that was not reset shows in the continuation, as vLLM scores without
its cache. One text, not several: a server reads all its weights for each, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.generation.engine import Completion, GenerationEngine, Request, RolloutSampling
from paceline.generation.local import score_texts
from paceline.generation.remote import ServerEngine
from paceline.protocols.model import RootModule
from paceline.protocols.rollout import RolloutInterrupted
from paceline.runtime.process_group.world import World
from paceline.training import codes

OWN_TEXTS, OWN_TOKENS = 2, 16  # of the own engine's answers: 1% of the time that 32 of 128 tokens take
TEXT = 160  # tokens, more than a cache block: 16 tokens on GPUs, up to 128 on CPUs
GREEDY = 4
MARGIN = 3.0  # times the gap at the start
CHANGE = 0.05  # of a norm's weights, or of an adapter's B, for the second of the three measurements


@dataclass(frozen=True)
class GapBounds:
    """Mean differences of log-probabilities, in nats: the lower bound of a server's later limit, and the
    largest gap allowed at the start.

    Equal programs differ by the order of their additions: 1e-6 in float32, 0.01 in 16 bit.
    """

    floor: float
    most: float

    @staticmethod
    def of(dtype: torch.dtype) -> GapBounds:
        """Return the bounds of a model that computes in ``dtype``."""
        return GapBounds(1e-4, 0.02) if dtype in (torch.float32, torch.float64) else GapBounds(0.05, 0.5)


@dataclass(frozen=True)
class ServerScores:
    """A server's log-probabilities [163] of the text, and of the ``tokens`` that it wrote after it."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class Gap(NamedTuple):
    """|server − model|, in nats: its mean over the text, and its median of the few tokens after it.

    One of these few can be far off in 16 bit.
    """

    text: float
    after: float

    def over(self, limit: Gap) -> tuple[float, float] | None:
        """Return the first part that is over its limit, and that limit; None if none is."""
        return next(((part, most) for part, most in zip(self, limit, strict=True) if not part <= most), None)


@dataclass
class WeightProbe:
    """Asks servers, and compares with the model. ``limits``: the largest gaps of each server, by its place.

    Each part has a limit: a mean over 160 tokens is far steadier than what four tokens give.
    """

    vocab_size: int
    positions: int
    bounds: GapBounds
    limits: dict[int, Gap] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Its own generator: equal on every rank, and the run's noise stays as it was.
        noise = torch.Generator().manual_seed(0)
        length = max(2, min(TEXT, self.positions - GREEDY - 1))
        # 0 often pads, with an embedding of zeros, which ``LoudLayers`` cannot scale
        self.text = tuple(torch.randint(1, self.vocab_size, (length,), generator=noise).tolist())

    def fill_cache(self, engine: ServerEngine) -> None:
        """Have the server read the text with the weights that it has now."""
        engine.answer(Request(self.text, 0, 1), RolloutSampling(temperature=0.0))

    def query(self, engine: ServerEngine) -> ServerScores:
        """Return the server's log-probabilities. Raises PacelineError ``rollout.server_*``."""
        written = engine.answer(Request(self.text, 0, GREEDY), RolloutSampling(temperature=0.0))
        # afterwards: it would read the text anew for the cache
        return ServerScores(written.tokens, (*engine.score(self.text), *written.logprobs.tolist()))

    def of_model(self, root: RootModule, written: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Return the model's log-probabilities, fp32 [163], of each server's tokens. Every rank calls it with
        the same arguments."""
        of = {
            tokens: score_texts(root.hf, [(*self.text, *tokens)], 1, root.computing).flatten().cpu()
            for tokens in dict.fromkeys(written)
        }
        return [of[tokens] for tokens in written]

    def gap(self, answered: ServerScores, own: Tensor) -> Gap:
        """Return how far the server is from the model."""
        apart = (torch.tensor(answered.logprobs) - own).abs()
        scored = len(self.text) - 1
        return Gap(float(apart[:scored].mean()), float(apart[scored:].median()))

    def moved(self, before: ServerScores, after: ServerScores) -> float:
        """Return the mean difference of a server's own scores of the text."""
        one, two = (torch.tensor(each.logprobs[: len(self.text) - 1]) for each in (before, after))
        return float((one - two).abs().mean())

    def limit(self, place: int) -> Gap:
        """Return the largest gaps allowed for a server; for an unmeasured one, the others' largest."""
        others = self.limits.values() or [Gap(self.bounds.most, self.bounds.most)]
        return self.limits.get(place, Gap(*(max(parts) for parts in zip(*others, strict=True))))

    def measured(self, place: int, gaps: Sequence[Gap], returned: float) -> str:
        """Set the limits from the ``gaps`` with the weights, with changed weights, and with the first again.
        Return why the server cannot be trusted, or nothing.

        ``returned``: the mean difference of the server's own answers between the first and the last.
        """
        first, changed, again = (max(gap) for gap in gaps)
        noise = max(first, again)
        # Equal programs may agree to the last bit; the floor keeps later noise from failing.
        limit = max(self.bounds.floor, MARGIN * noise)
        if noise > self.bounds.most:
            return f"its log-probabilities differ by {noise:.3g} nats at the start"
        if changed > limit:
            return f"after a change of every norm they differ by {changed:.3g} nats, before it by {first:.3g}"
        if returned > limit:
            return f"with the first weights again it answers otherwise than at first, by {returned:.3g} nats"
        parts = zip(*gaps, strict=True)
        self.limits[place] = Gap(*(max(self.bounds.floor, MARGIN * max(part)) for part in parts))
        return ""


@dataclass
class ProvedEngine:
    """``GenerationEngine`` over the model ``root`` of this process. The first tokens of the answers to the
    first prompt are scored again, by one forward of whole texts.

    ``most``: the largest mean difference at temperature 1, in nats.
    """

    engine: GenerationEngine
    root: RootModule
    world: World
    most: float

    def generate(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]:
        """Return one completion per request, in order. Collective.

        Raises RolloutInterrupted on every rank if caches or graphs compute other values than the model.
        """
        done = self.engine.generate(requests, sampling)
        answered = [(r, c) for r, c in zip(requests, done, strict=True) if c.tokens]
        group = [(r, c) for r, c in answered if r.prompt == answered[0][0].prompt][:OWN_TEXTS]
        # Cut to one length: ``score_texts`` takes no padding.
        length = min((len(c.tokens) for _, c in group), default=0)
        texts = [(*r.prompt, *c.tokens[: min(length, OWN_TOKENS)]) for r, c in group]
        begin = len(group[0][0].prompt) if group else 1
        hot = sampling.temperature or 1.0
        # where a forward is collective, a rank without answers makes one, too
        own = score_texts(self.root.hf, texts or [(0, 0)], begin, self.root.computing, hot).cpu()
        given = [c.logprobs[: own.shape[1]].float() for _, c in group]
        gap = float((torch.stack(given) - own).abs().mean()) if given else 0.0
        largest = max(self.world.all_gather_json(gap))
        # ``not <=`` also catches NaN. Below temperature 1 gaps grow as logits are divided.
        if not largest <= self.most * max(1.0, 1.0 / hot):
            reason = f"by caches {largest:.3g} nats a token from the model's own forward"
            remedy = (
                "report it, with the model's config.json; verify_weights: false goes on without this check"
            )
            raise RolloutInterrupted(codes.ROLLOUT_SAMPLING_GAP("training.rollout", reason, remedy=remedy))
        return done


@contextmanager
def changed(root: RootModule, parts: Sequence[Tensor]) -> Iterator[None]:
    """Inside, change these parts of the weights of ``root``; afterwards restore them bit for bit."""
    kept = [part.clone() for part in parts]
    with torch.no_grad():
        for place, part in enumerate(parts):
            # Alternating: a common factor of all norms could cancel in the next norm.
            sign = 1 - 2 * (place % 2)
            part.add_(sign * CHANGE * (1 + part.abs()))
    root.refresh_compute_weights()
    try:
        yield
    finally:
        with torch.no_grad():
            for part, value in zip(parts, kept, strict=True):
                part.copy_(value)
        root.refresh_compute_weights()
