"""Rollouts: prompts answered by the policy, answers judged, cut into the windows of the next optimizer steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paceline.algorithms.on_policy import with_tokens
from paceline.algorithms.rewards.scoring import Scored
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.data.source import PackedSource
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.noise import stream_of
from paceline.protocols.batch import Batch
from paceline.protocols.rollout import OnPolicyObjective, RolloutAnswers
from paceline.protocols.shard import Shard, ShardReader
from paceline.protocols.window import Report, Window
from paceline.runtime.world import World
from paceline.strategies.base import Runner
from paceline.strategies.handle import Handles
from paceline.training import codes
from paceline.training.rollout.answers import Answerer, Limits, evaluate_answers
from paceline.training.rollout.batches import Answer, answer_batch
from paceline.training.rollout.cut import RolloutCut
from paceline.training.rollout.report import Judged, report_metrics, sample_rows
from paceline.training.rollout.state import batch_shards, read_batch
from paceline.training.windows import Epochs, sample_digest


@dataclass
class Rollout:
    """One rank's share of a rollout: ``batches`` by update and micro-step, ready to be trained on."""

    number: int
    batches: list[list[Batch]]
    report: Report | None


@dataclass
class RolloutWindows:
    """The windows of one rank from global step ``start`` on, made of rollouts with the weights of that moment.

    Answer number p of an epoch is sample p mod group of prompt p div group in the epoch's order, whatever rank makes it; its noise depends on
    (seed, epoch, prompt, sample) alone. ``leader``: this rank's numbers stand for its group of ranks that see the same rows.
    ``filter_groups``: prompts whose answers score the same are told of, not trained on.
    """

    world: World
    runner: Runner
    algorithm: OnPolicyObjective
    handles: Handles
    prompts: PackedSource
    answerer: Answerer
    sampling: RolloutSampling
    limits: Limits
    cut: RolloutCut
    epochs: Epochs
    start: int
    seed: int
    pad_id: int
    dtype: torch.dtype
    leader: bool = True
    shown: int = 2
    filter_groups: bool = False
    sampling_exact: bool = False  # what ``PrecomputedField.known`` names is taken for what would be computed
    reader: ShardReader | None = None  # of the checkpoint that the run goes on from
    current: Rollout | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Window]:
        for step in range(self.start, self.epochs.total_steps):
            yield self.window(step)

    def window(self, step: int) -> Window:
        """The window of global ``step``: a new rollout where one begins. Collective."""
        epoch, within = self.epochs.locate(step)
        number, place = divmod(within, self.cut.steps)
        fresh = place == 0
        if fresh or self.current is None:
            self.current = self.roll(epoch, number) if fresh else self._read(number)
        update = place % self.cut.updates
        start = (number * self.cut.updates + update) * self.cut.cut.global_batch
        everyone = self._prompts_of(epoch, range(start, start + self.cut.cut.global_batch))
        report = self.current.report if fresh else None
        return Window(step, epoch, self.current.batches[update], sample_digest([i for i in everyone if i >= 0]), report)

    def shards(self, step: int) -> Iterator[Shard]:
        """This rank's part of the running rollout, where ``step`` finished steps leave some of it unused."""
        if self.current is None or not self.leader or (self.epochs.locate(step - 1)[1] + 1) % self.cut.steps == 0:
            return
        for first, batch in zip(self._firsts(), [b for row in self.current.batches for b in row], strict=True):
            yield from batch_shards(batch, first)

    def _read(self, number: int) -> Rollout:
        """The rollout that the checkpoint was made in the middle of."""
        assert self.reader is not None, "a run begins with a rollout"
        fields = self.algorithm.fields()
        size, accumulation = self.cut.cut.micro_batch, self.cut.cut.accumulation
        flat = [read_batch(self.reader, first, size, fields) for first in self._firsts()]
        batches = [flat[i : i + accumulation] for i in range(0, len(flat), accumulation)]
        return Rollout(number, batches, None)

    def _firsts(self) -> list[int]:
        """The place in a rollout of the first answer of each of this rank's micro-batches."""
        return self._places(0)[:: self.cut.cut.micro_batch]

    def filler(self) -> Batch:
        """A micro-batch that weighs nothing, with every field a real one has."""
        batch = answer_batch([None] * self.cut.cut.micro_batch, self.pad_id, self.dtype)
        zero = torch.zeros(batch.labels.shape, dtype=self.dtype)
        return replace(batch, tokens=dict.fromkeys(self.algorithm.fields(), zero))

    # --- one rollout -----------------------------------------------------------------------------------------------

    def roll(self, epoch: int, number: int) -> Rollout:
        """Generate, judge, compute advantages, and ask what the algorithm needs to know before its first step. Collective."""
        answerer = self.answerer
        answerer.restart_clock()
        begun = time.perf_counter()
        first, places = number * self.cut.answers, self._places(number)
        requests, owners = self._requests(epoch, places)
        completions = answerer.write(requests, self.sampling)
        forwards = len(places) // self.cut.cut.micro_batch
        samples, scored = answerer.judged(self.prompts.table, owners, requests, completions, forwards)
        judged = self._share(first, places, owners, completions, scored)
        groups = torch.arange(self.cut.answers) // self.cut.group
        advantages, spread = self.algorithm.compute_advantages(judged.scores, groups, judged.ended)
        kept = spread > 0 if self.filter_groups else torch.ones_like(spread, dtype=torch.bool)
        made = self._answers(requests, owners, completions, judged, advantages, kept, first)
        with answerer.timed("ask"):
            batches = self._batches(number, dict(zip(places, made, strict=True)))
            own = torch.split(torch.tensor(places) - first, self.cut.cut.micro_batch)
            answers = RolloutAnswers(advantages, groups, judged.judged & kept, own, self._total)
            batches, stats = self.algorithm.finalize_rollout(batches, answers)
        seconds = time.perf_counter() - begun
        compares = self.algorithm.uses_group_baseline
        notes = [*scored.problems, *_nothing_learnt(judged, spread, compares)] if self.leader else []
        metrics = report_metrics(judged, spread if compares else None, self.answerer.scorer.labels, groups)
        clock = {f"time/{phase}": value for phase, value in answerer.clock.items()}
        report = Report(
            {**metrics, **stats, **clock, "time/rollout": seconds},
            sample_rows(samples, scored, self.shown) if self.world.rank == 0 else (),
            notes,
            seconds,
        )
        return Rollout(number, batches, report)

    def _total(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks that see different answers."""
        found: list[float] = self.world.all_reduce_sum_float(list(values) if self.leader else [0.0] * len(values))
        return found

    def _places(self, number: int) -> list[int]:
        """This rank's answers of a rollout, by their place in the epoch."""
        cut, found = self.cut.cut, []
        for update in range(self.cut.updates):
            step = number * self.cut.updates + update
            for j in range(cut.accumulation):
                found += cut.positions(step, j, 1 << 62)
        return found

    def _prompts_of(self, epoch: int, places: Sequence[int]) -> list[int]:
        """The prompt's document of each place; -1 beyond the end."""
        ids: list[int] = self.prompts.document_ids(epoch, [p // self.cut.group for p in places])
        return ids

    def _requests(self, epoch: int, places: Sequence[int]) -> tuple[list[Request], list[int]]:
        """(a request for each place, its prompt's document); places beyond the end ask for nothing."""
        owners, table = self._prompts_of(epoch, places), self.prompts.table
        requests = []
        for place, owner in zip(places, owners, strict=True):
            ids = () if owner < 0 else tuple(table.row(owner)[0].tolist())
            stream = stream_of(self.seed, epoch, owner, place % self.cut.group)
            requests.append(Request(ids, stream, self.limits.room(ids)))
        return requests, owners

    def _share(
        self,
        first: int,
        places: Sequence[int],
        owners: Sequence[int],
        completions: Sequence[Completion],
        scored: Scored,
    ) -> Judged:
        """Everybody's scores and lengths, by place in the rollout: one all-reduce of numbers that one rank has and the others leave 0."""
        count, labels = self.cut.answers, self.answerer.scorer.labels
        table = torch.zeros(5 + 2 * len(labels), count, dtype=torch.float64)
        if self.leader:
            real = [i for i, owner in enumerate(owners) if owner >= 0]
            for row, i in enumerate(real):
                at = places[i] - first
                values = [scored.total[row], *(scored.parts[label][row] for label in labels)]
                known = [0.0 if math.isnan(v) else 1.0 for v in values]
                clean = [0.0 if math.isnan(v) else v for v in values]
                table[:, at] = torch.tensor(
                    [1.0, len(completions[i].tokens), float(completions[i].ended), *clean, *known], dtype=torch.float64
                )
        total = torch.tensor(self.world.all_reduce_sum_float(table.flatten().tolist()), dtype=torch.float64)
        return Judged.of(total.view_as(table), labels)

    def _answers(
        self,
        requests: Sequence[Request],
        owners: Sequence[int],
        completions: Sequence[Completion],
        judged: Judged,
        advantages: Tensor,
        kept: Tensor,
        first: int,
    ) -> list[Answer | None]:
        """What each place is trained on; None beyond the end, and where ``kept`` [R] says no."""
        places = self._own_places(first)
        found: list[Answer | None] = []
        for request, owner, completion, place in zip(requests, owners, completions, places, strict=True):
            if owner < 0 or not bool(kept[place - first]):
                found.append(None)
                continue
            is_scored = bool(judged.judged[place - first])
            has_loss = is_scored and (completion.ended or not self.algorithm.masks_truncated)
            advantage = float(advantages[place - first])
            answer = (owner, request.prompt, completion.tokens, completion.logprobs, advantage)
            found.append(Answer(*answer, is_scored, has_loss))
        return found

    def _own_places(self, first: int) -> list[int]:
        return self._places(first // self.cut.answers)

    def _batches(self, number: int, answers: Mapping[int, Answer | None]) -> list[list[Batch]]:
        """Micro-batches by update and micro-step, with what the algorithm asks of its models. Collective: as many forwards on every rank."""
        cut, found = self.cut.cut, []
        for update in range(self.cut.updates):
            step = number * self.cut.updates + update
            row = []
            for j in range(cut.accumulation):
                batch = answer_batch([answers[p] for p in cut.positions(step, j, 1 << 62)], self.pad_id, self.dtype)
                for wanted in self.algorithm.precomputed_fields():
                    if wanted.known and self.sampling_exact:
                        batch = with_tokens(batch, wanted.name, batch.at_labels(wanted.known))
                        continue
                    placed = self.runner.strategy.shard_batch(batch)
                    out = self.runner.forward_no_grad(self.handles, wanted.role, placed, frozenset({wanted.ask}))
                    batch = with_tokens(batch, wanted.name, out[wanted.ask.value])
                row.append(batch)
            found.append(row)
        return found

    def evaluate(self, prompts: PackedSource) -> dict[str, float]:
        """The likeliest answer to every prompt, judged. Collective."""
        return evaluate_answers(self.answerer, prompts, self.world, self.cut.cut, self.limits, self.leader)


def _nothing_learnt(judged: Judged, spread: Tensor, compares: bool) -> list[Diagnostic]:
    """Said when no group of a rollout has two different scores."""
    if not bool(judged.judged.any()):
        what, hint = "no answer of this rollout was judged: nothing is learnt of it", "see why the rewards left all out"
    elif compares and bool((spread == 0).all()):
        what = "within each group all rewards are equal: every advantage is 0 and nothing is learnt of this rollout"
        hint = "num_generations of 2 and more, a temperature above 0, or a reward that tells these answers apart"
    else:
        return []
    return [codes.ROLLOUT_NO_SPREAD(what, "training.rollout", hint=hint, severity=Severity.WARNING)]
