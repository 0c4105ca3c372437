"""Generate answers with the current policy and score them, for rollouts and for evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.algorithms.rewards.builtin import Sample
from paceline.algorithms.rewards.scoring import Scored, Scorer
from paceline.data.packed_source import PackedSource
from paceline.data.token_table import TokenTable
from paceline.generation.engine import Completion, GenerationEngine, Request, RolloutSampling
from paceline.protocols.model import RootModule
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handle
from paceline.strategies.strategy import Strategy
from paceline.training.loop.window_source import BatchLayout
from paceline.training.rollout.reward_model import RewardModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OPENING = 16  # tokens of the prompt's end: more than a tag has

OpenEngine = Callable[[RootModule], GenerationEngine]  # of what ``Strategy.generating`` yields


@dataclass
class RolloutGenerator:
    """Generates and scores answers. ``clock`` holds the seconds of each phase since it was last restarted."""

    strategy: Strategy
    policy: Handle
    tokenizer: PreTrainedTokenizerBase
    scorer: Scorer
    open_engine: OpenEngine
    reward_model: RewardModel | None = None
    clock: dict[str, float] = field(default_factory=dict)

    def restart_clock(self) -> None:
        """Reset the phase times."""
        self.clock.clear()

    def write(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]:
        """Generate completions with the current policy. Collective, also for a rank without requests."""
        begun = time.perf_counter()
        with self.strategy.generating(self.policy) as root:
            engine = self.open_engine(root)
            self._count("sync", begun)
            with self.timed("generate"):
                completions = engine.generate(requests, sampling)
            begun = time.perf_counter()
        self._count("sync", begun)
        return completions

    def judged(
        self,
        table: TokenTable,
        owners: Sequence[int],
        requests: Sequence[Request],
        completions: Sequence[Completion],
        batches: int,
    ) -> tuple[list[Sample], Scored]:
        """Return the answers to real prompts (``owners`` not negative) and their scores. Collective.

        A reward model scores them in ``batches`` forwards.
        """
        with self.timed("score"):
            samples = self._samples(table, owners, requests, completions)
            by_model: list[float] = []
            if self.reward_model is not None:
                documents = [
                    None if owner < 0 else self.reward_model.document(request.prompt, completion)
                    for owner, request, completion in zip(owners, requests, completions, strict=True)
                ]
                model_scores = self.reward_model(documents, batches)
                by_model = [score for score, owner in zip(model_scores, owners, strict=False) if owner >= 0]
            return samples, self.scorer(samples, by_model)

    def _samples(
        self,
        table: TokenTable,
        owners: Sequence[int],
        requests: Sequence[Request],
        completions: Sequence[Completion],
    ) -> list[Sample]:
        """Return the answers to real prompts, with what rewards may use."""
        real = [i for i, owner in enumerate(owners) if owner >= 0]
        if not real:
            return []  # tokenizers differ on decoding an empty list
        texts = self.tokenizer.batch_decode(
            [list(completions[i].tokens) for i in real], skip_special_tokens=True
        )
        openings = self.tokenizer.batch_decode([list(requests[i].prompt[-_OPENING:]) for i in real])
        samples = []
        for i, text, opening in zip(real, texts, openings, strict=True):
            facts, completion = table.facts(owners[i]), completions[i]
            prompt = str(facts.pop("prompt", ""))
            samples.append(
                Sample(prompt, str(text), facts, len(completion.tokens), completion.ended, str(opening))
            )
        return samples

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the time inside as the phase ``name``."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._count(name, begun)

    def _count(self, name: str, begun: float) -> None:
        self.clock[name] = self.clock.get(name, 0.0) + time.perf_counter() - begun


@dataclass(frozen=True)
class Limits:
    """Maximum tokens of an answer, and of prompt and answer together."""

    completion: int
    together: int

    def room(self, prompt: Sequence[int]) -> int:
        """Return the maximum tokens of an answer to ``prompt``; 0 without a prompt."""
        return min(self.completion, self.together - len(prompt)) if len(prompt) else 0


def evaluate_answers(
    generator: RolloutGenerator,
    prompts: PackedSource,
    world: World,
    layout: BatchLayout,
    limits: Limits,
    is_group_leader: bool,
) -> dict[str, float]:
    """Score the greedy answer to every prompt: ``eval_reward``, ``eval_reward/<function>``, lengths,
    ``eval_rows``.

    Collective.
    """
    labels, count = generator.scorer.labels, prompts.num_rows(0)
    owners = prompts.document_ids(0, list(range(layout.dp_rank, count, layout.dp_size)))
    requests = []
    for owner in owners:
        ids = tuple(prompts.table.row(owner)[0].tolist())
        requests.append(Request(ids, 0, limits.room(ids)))
    completions = generator.write(requests, RolloutSampling(temperature=0.0))
    batches = math.ceil(math.ceil(count / layout.dp_size) / layout.micro_batch)
    _, scored = generator.judged(prompts.table, owners, requests, completions, batches)
    # Sums and counts of each score, then of the answers, reduced over the data-parallel ranks
    columns = [scored.total, *(scored.parts[label] for label in labels)]
    known = [[v for v in column if not math.isnan(v)] for column in columns]
    sums = [math.fsum(values) for values in known] + [float(len(values)) for values in known]
    sums += [
        float(len(owners)),
        float(sum(len(c.tokens) for c in completions)),
        float(sum(c.ended for c in completions)),
    ]
    total = world.all_reduce_sum_float(sums if is_group_leader else [0.0] * len(sums))
    return _means(total, ["eval_reward", *(f"eval_reward/{label}" for label in labels)])


def _means(total: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    count = len(names)
    found = {
        name: total[i] / total[count + i] if total[count + i] else math.nan for i, name in enumerate(names)
    }
    rows, tokens, ended = total[2 * count :]
    return {
        **found,
        "eval_rows": rows,
        "eval_completion_length": tokens / rows,
        "eval_truncated": 1.0 - ended / rows,
    }
