"""Generate answers with the current policy and score them, for rollouts and for evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from paceline.algorithms.rewards.builtin import Sample
from paceline.algorithms.rewards.scoring import Scored, Scorer
from paceline.core.diagnostics import Diagnostic
from paceline.data.packed_source import PackedSource
from paceline.data.token_table import TokenTable
from paceline.data.tokenizer.file_facts import special_texts
from paceline.generation.engine import Completion, GenerationEngine, Request, RolloutSampling
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Output, Role
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handle, Handles
from paceline.strategies.strategy import Runner, Strategy, evaluating
from paceline.training.loop.window_source import BatchLayout
from paceline.training.rollout.answer_batches import Answer, answer_batch
from paceline.training.rollout.server import RolloutServers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OPENING = 16  # tokens of the prompt's end: more than a tag has

OpenEngine = Callable[[RootModule], GenerationEngine]  # of what ``Strategy.generating`` yields


@dataclass
class RolloutGenerator:
    """Generates and scores answers. ``clock`` holds the seconds of each phase since it was last restarted.

    ``servers``: the servers that write the answers, if any.
    """

    strategy: Strategy
    policy: Handle
    tokenizer: PreTrainedTokenizerBase
    scorer: Scorer
    open_engine: OpenEngine
    reward_model: RewardModel | None = None
    servers: RolloutServers | None = field(default=None, repr=False)
    clock: dict[str, float] = field(default_factory=dict)

    def restart_clock(self) -> None:
        """Reset the phase times."""
        self.clock.clear()
        if self.servers is not None:
            self.servers.restart_count()

    def take_notes(self) -> list[Diagnostic]:
        """Return what became of the servers since the last notes."""
        return [] if self.servers is None else self.servers.take_notes()

    def sent(self) -> dict[str, float]:
        """Return the bytes that servers were sent since the clock was restarted."""
        return {} if self.servers is None else {"sync_bytes": float(self.servers.num_bytes)}

    def write(self, requests: Sequence[Request], sampling: RolloutSampling) -> list[Completion]:
        """Generate completions with the current policy. Collective, also for a rank without requests."""
        if self.servers is not None:
            # The weights that servers get are those that a local engine would use: averaged, without
            # dropout.
            with self.timed("sync"), self.policy.averaged(), evaluating(self.policy.root):
                served = self.servers.open(self.policy.root)
            with self.timed("generate"):
                return served.generate(requests, sampling)
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
                # Fillers only keep the number of forwards equal; their scores are dropped.
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
        special = special_texts(self.tokenizer)
        openings = self.tokenizer.batch_decode([list(requests[i].prompt[-_OPENING:]) for i in real])
        samples = []
        for i, text, opening in zip(real, texts, openings, strict=True):
            facts, completion = table.facts(owners[i]), completions[i]
            prompt = str(facts.pop("prompt", ""))
            samples.append(
                Sample(
                    prompt,
                    str(text),
                    facts,
                    len(completion.tokens),
                    completion.ended,
                    str(opening),
                    special.removed_from(str(facts["answer"])) if "answer" in facts else None,
                )
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
        # Stream 0: greedy answers use no noise.
        requests.append(Request(ids, 0, limits.room(ids)))
    completions = generator.write(requests, RolloutSampling(temperature=0.0))
    # the most that any rank has, so that all make as many forwards
    batches = math.ceil(math.ceil(count / layout.dp_size) / layout.micro_batch)
    _, scored = generator.judged(prompts.table, owners, requests, completions, batches)
    # Sums and counts of each score, then of the answers, reduced over the data-parallel ranks
    columns = [scored.total, *(scored.parts[label] for label in labels)]
    scores = [[v for v in column if not math.isnan(v)] for column in columns]
    sums = [math.fsum(values) for values in scores] + [float(len(values)) for values in scores]
    sums += [
        float(len(owners)),
        float(sum(len(c.tokens) for c in completions)),
        float(sum(c.ended for c in completions)),
    ]
    # Of ranks that read the same rows one counts.
    total = world.all_reduce_sum_float(sums if is_group_leader else [0.0] * len(sums))
    count = len(columns)
    names = ["eval_reward", *(f"eval_reward/{label}" for label in labels)]
    pairs = zip(total[:count], total[count : 2 * count], strict=True)
    means = [score / scored_answers if scored_answers else math.nan for score, scored_answers in pairs]
    rows, tokens, ended = total[2 * count :]
    return {
        **dict(zip(names, means, strict=True)),
        "eval_rows": rows,
        "eval_completion_length": tokens / rows,
        "eval_truncated": 1.0 - ended / rows,
    }


@dataclass
class RewardModel:
    """Scores of ``Role.REWARD``: prompt and answer as one document, scored at the last token.

    ``closing``: the tokens that close an answer in the rows that a reward model is trained on. They are the
    stop token and the template's text after it. ``longest``: the most tokens of a document.
    """

    runner: Runner
    handles: Handles
    rows: int
    pad_id: int
    dtype: torch.dtype
    closing: tuple[int, ...]
    longest: int

    def document(self, prompt: Sequence[int], completion: Completion) -> tuple[int, ...]:
        """Return the tokens to score: prompt and answer, closed as training closes a row.

        TRL's GRPOTrainer also renders the conversation with the answer. Longer documents are truncated, as in
        training.
        """
        # An answer that ended has its stop token already.
        closing = self.closing[1:] if completion.ended else self.closing
        return (*prompt, *completion.tokens, *closing)[
            : max(self.longest, len(prompt) + len(completion.tokens))
        ]

    def __call__(self, documents: Sequence[tuple[int, ...] | None], batches: int) -> list[float]:
        """Return a score per document (None: a filler, with score 0), in ``batches`` forwards of ``rows``.

        Collective. ``batches`` is the same on every rank.
        """
        scores_of_documents: list[float] = []
        nothing = torch.zeros(0, dtype=self.dtype)
        for start in range(0, batches * self.rows, self.rows):
            part = list(documents[start : start + self.rows])
            # The whole document as a "prompt": nothing of it is labelled.
            rows = [None if ids is None else Answer(0, ids, (), nothing, 0.0, True, False) for ids in part]
            batch = self.runner.strategy.shard_batch(
                answer_batch([*rows, *[None] * (self.rows - len(rows))], self.pad_id, self.dtype)
            )
            out = self.runner.forward_no_grad(self.handles, Role.REWARD, batch, frozenset({Output.SCORES}))
            scores = out[Output.SCORES.value].cpu().double().tolist()
            scores_of_documents += [
                0.0 if ids is None else score for ids, score in zip(part, scores, strict=False)
            ]
        return scores_of_documents
