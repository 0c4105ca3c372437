"""Windows from rollouts: generate answers with the policy, score them, split them into optimizer steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paceline.algorithms.on_policy.base import with_tokens
from paceline.algorithms.rewards.scoring import Scored
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import JsonObject
from paceline.data.packed_source import PackedSource
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.sampling.noise import stream_of
from paceline.protocols.batch import Batch
from paceline.protocols.rollout import OnPolicyObjective, RolloutAnswers, RolloutInterrupted
from paceline.protocols.shard import Shard, ShardReader
from paceline.protocols.window import Report, Window
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.training import codes
from paceline.training.loop.window_source import Epochs, sample_digest
from paceline.training.rollout.answer_batches import Answer, answer_batch, batch_shards, read_batch
from paceline.training.rollout.generate import Limits, RolloutGenerator, evaluate_answers
from paceline.training.rollout.layout import Prompt, PromptSampler, RolloutLayout
from paceline.training.rollout.scored_rollout import LoggedCompletions, RolloutRewards, ScoredRollout


@dataclass
class Rollout:
    """One rank's part of a rollout: ``batches`` by update and micro-step, ready to train on."""

    number: int
    batches: list[list[Batch]]
    report: Report | None


@dataclass
class RolloutWindows:
    """The windows of one rank from global step ``start`` on; each rollout uses the weights at its beginning.

    Answer p of a rollout is sample p % group of the prompt of group p // group (``draws``), on any rank.
    Its noise depends only on (seed, epoch, prompt, sample). ``is_group_leader``: this rank contributes the
    numbers of its group of ranks that see the same rows. ``filter_groups``: prompts whose answers all score
    the same are reported but not trained on; up to ``max_redraws`` times they are first replaced by other
    prompts.
    """

    world: World
    runner: Runner
    algorithm: OnPolicyObjective
    handles: Handles
    prompts: PackedSource
    draws: PromptSampler
    generator: RolloutGenerator
    sampling: RolloutSampling
    limits: Limits
    layout: RolloutLayout
    epochs: Epochs
    start: int
    seed: int
    pad_id: int
    dtype: torch.dtype
    is_group_leader: bool = True
    shown: int = 2
    filter_groups: bool = False
    max_redraws: int = 0
    sampling_exact: bool = False  # use the field ``PrecomputedField.known`` instead of computing it
    reader: ShardReader | None = None  # of the checkpoint to resume from
    current: Rollout | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Window]:
        for step in range(self.start, self.epochs.total_steps):
            yield self.window(step)

    def window(self, step: int) -> Window:
        """Return the window of global ``step``; makes a new rollout where one begins. Collective."""
        epoch, within = self.epochs.locate(step)
        number, step_of_rollout = divmod(within, self.layout.steps)
        fresh = step_of_rollout == 0
        if fresh or self.current is None:
            self.current = self.roll(epoch, number) if fresh else self._read(epoch, number)
        update, answers = step_of_rollout % self.layout.updates, self.layout.batch_layout.global_batch
        # Of all ranks: the digest of a step does not depend on how many there are.
        everyone = [self._prompt(p).document for p in range(update * answers, (update + 1) * answers)]
        report = self.current.report if fresh else None
        return Window(
            step,
            epoch,
            self.current.batches[update],
            sample_digest([i for i in everyone if i >= 0]),
            report,
            self._no_labels(),
        )

    def _no_labels(self) -> str:
        """Return the remedy for a step whose answers were all left out."""
        if not self.filter_groups:
            return "use a reward that scores the answers: no reward scored any of them"
        return (
            "filter_groups drops every prompt whose answers all have the same score: use a reward"
            " that distinguishes answers, a higher temperature, or training.rollout.max_redraws"
            f" above {self.max_redraws}"
        )

    def _prompt(self, place: int) -> Prompt:
        """Return the prompt of the answer at ``place`` in the rollout."""
        return self.draws.prompts_of_groups[place // self.layout.group]

    def shards(self, step: int) -> Iterator[Shard]:
        """Yield this rank's part of the current rollout, if some of it is unused after ``step`` steps."""
        if (
            self.current is None
            or not self.is_group_leader
            # The last step of a rollout: the next window makes a new one.
            or (self.epochs.locate(step - 1)[1] + 1) % self.layout.steps == 0
        ):
            return
        for first, batch in zip(
            self._firsts(), [b for row in self.current.batches for b in row], strict=True
        ):
            yield from batch_shards(batch, first)

    def state(self) -> JsonObject:
        """Return what a checkpoint must hold about the drawn prompts (JSON)."""
        return self.draws.state()

    def _read(self, epoch: int, number: int) -> Rollout:
        """Read the rollout during which the checkpoint was saved."""
        assert self.reader is not None, "a run must begin with a rollout"
        self.draws.resume(epoch, number)
        fields = self.algorithm.fields()
        size, accumulation = self.layout.batch_layout.micro_batch, self.layout.batch_layout.accumulation
        flat = [read_batch(self.reader, first, size, fields) for first in self._firsts()]
        batches = [flat[i : i + accumulation] for i in range(0, len(flat), accumulation)]
        return Rollout(number, batches, None)

    def _firsts(self) -> list[int]:
        """Return the place in the rollout of the first answer of each of this rank's micro-batches."""
        return self._places()[:: self.layout.batch_layout.micro_batch]

    def filler(self) -> Batch:
        """Return a micro-batch of weight 0 with every field of a real one."""
        batch = answer_batch([None] * self.layout.batch_layout.micro_batch, self.pad_id, self.dtype)
        # Shared by all fields: nothing writes to it.
        zero = torch.zeros(batch.labels.shape, dtype=self.dtype)
        return replace(batch, tokens=dict.fromkeys(self.algorithm.fields(), zero))

    # --- one rollout

    def roll(self, epoch: int, number: int) -> Rollout:
        """Generate and score answers, compute advantages, and run the algorithm's forwards. Collective."""
        generator = self.generator
        generator.restart_clock()
        begun = time.perf_counter()
        places, groups = self._places(), torch.arange(self.layout.answers) // self.layout.group
        # Generate and score; groups that are filtered out become fillers
        with self.draws.undone_by(RolloutInterrupted):
            self.draws.begin(epoch, number)
            drawn = self._draw(places, groups)
        judged = drawn.judged
        kept = drawn.spread > 0 if self.filter_groups else torch.ones_like(drawn.spread, dtype=torch.bool)
        trained = {place: self._answer(place, drawn, kept) for place in places}
        # Forwards of policy and reference before the first update, then token-level advantages
        with generator.timed("ask"):
            batches = self._batches(trained)
            indices = torch.split(torch.tensor(places), self.layout.batch_layout.micro_batch)
            answers = RolloutAnswers(drawn.advantages, groups, judged.judged & kept, indices, self._total)
            batches, stats = self.algorithm.finalize_rollout(batches, answers)
        # Report: every rank has the metrics, rank 0 the samples
        seconds = time.perf_counter() - begun
        wait = max(0.0, seconds - sum(generator.clock.values()))  # mostly for the slowest rank
        clock = {f"time/{phase}": value for phase, value in {**generator.clock, "wait": wait}.items()}
        compares = self.algorithm.uses_group_baseline
        metrics = drawn.metrics(self.generator.scorer.labels, self.layout.group, compares=compares)
        if self.max_redraws:
            metrics |= drawn.counts(self.layout.group)
        found = [*drawn.problems, *self.check_spread(drawn)] if self.is_group_leader else []
        notes = [*generator.take_notes(), *found]
        report = Report(
            {**metrics, **stats, **clock, **generator.sent(), "time/rollout": seconds},
            drawn.shown.rows(self.shown, generator.tokenizer) if self.world.rank == 0 else (),
            notes,
            seconds,
        )
        return Rollout(number, batches, report)

    def _draw(self, places: Sequence[int], groups: Tensor) -> ScoredRollout:
        """Return answers for every place. Collective.

        Flat groups are resampled until none is left or ``max_redraws`` is reached.
        """
        drawn = self._written(places, len(places))
        for again in range(self.max_redraws + 1):
            drawn.compare(self.algorithm, groups)
            flat = drawn.flat_groups(self.layout.group)
            if again == self.max_redraws or not flat:
                break
            self.draws.replace(flat)
            # All ranks have the same list, as the scores are shared.
            chosen = set(flat)
            theirs = [place for place in places if place // self.layout.group in chosen]
            drawn.replace(
                self._written(theirs, min(len(places), len(flat) * self.layout.group)), groups, flat
            )
        return drawn

    def _written(self, places: Sequence[int], most: int) -> ScoredRollout:
        """Generate and score the answers at ``places``. Collective.

        A reward model makes as many forwards as ``most`` answers need; no rank has more.
        """
        used_prompts, table = [self._prompt(place) for place in places], self.prompts.table
        requests = []
        for place, prompt in zip(places, used_prompts, strict=True):
            ids = () if prompt.document < 0 else tuple(table.row(prompt.document)[0].tolist())
            # Not of the rank or the place: the same noise under any split.
            stream = stream_of(self.seed, prompt.epoch, prompt.document, place % self.layout.group)
            requests.append(Request(ids, stream, self.limits.room(ids)))
        completions = self.generator.write(requests, self.sampling)
        owners, forwards = (
            [prompt.document for prompt in used_prompts],
            -(-most // self.layout.batch_layout.micro_batch),
        )
        samples, scored = self.generator.judged(table, owners, requests, completions, forwards)
        written = dict(zip(places, zip(owners, requests, completions, strict=True), strict=True))
        return ScoredRollout(
            written,
            self._share(places, owners, completions, scored),
            LoggedCompletions(
                samples, scored, [c for c, o in zip(completions, owners, strict=True) if o >= 0]
            ),
            list(scored.problems),
        )

    def _total(self, values: Sequence[float]) -> list[float]:
        """Sum over the ranks that see different answers. Collective."""
        return self.world.all_reduce_sum_float(list(values) if self.is_group_leader else [0.0] * len(values))

    def _places(self) -> list[int]:
        """Return the places in the rollout of this rank's answers."""
        layout = self.layout.batch_layout
        return [
            p
            for u in range(self.layout.updates)
            for j in range(layout.accumulation)
            # no end: a rollout is whole
            for p in layout.positions(u, j, 1 << 62)
        ]

    def _share(
        self, places: Sequence[int], owners: Sequence[int], completions: Sequence[Completion], scored: Scored
    ) -> RolloutRewards:
        """Return the scores and lengths of all ranks by place. Collective.

        An all-reduce of a table that is 0 where a rank has nothing.
        """
        labels = self.generator.scorer.labels
        table = torch.zeros(5 + 2 * len(labels), self.layout.answers, dtype=torch.float64)
        real = [i for i, owner in enumerate(owners) if owner >= 0]
        for row, i in enumerate(real):
            values = [scored.total[row], *(scored.parts[label][row] for label in labels)]
            # NaN would spread to all ranks by the sum, so it travels as a mask.
            is_known = [0.0 if math.isnan(v) else 1.0 for v in values]
            clean = [0.0 if math.isnan(v) else v for v in values]
            row_values = [1.0, len(completions[i].tokens), float(completions[i].ended), *clean, *is_known]
            table[:, places[i]] = torch.tensor(row_values, dtype=torch.float64)
        total = torch.tensor(self._total(table.flatten().tolist()), dtype=torch.float64)
        return RolloutRewards.of(total.view_as(table), labels)

    def _answer(self, place: int, drawn: ScoredRollout, kept: Tensor) -> Answer | None:
        """Return the answer to train on at ``place``; None beyond the end, and where ``kept`` [R] is
        false."""
        owner, request, completion = drawn.written[place]
        if owner < 0 or not bool(kept[place]):
            return None
        is_scored = bool(drawn.judged.judged[place])
        has_loss = is_scored and (completion.ended or not self.algorithm.masks_truncated)
        advantage = float(drawn.advantages[place])
        return Answer(
            owner, request.prompt, completion.tokens, completion.logprobs, advantage, is_scored, has_loss
        )

    def _batches(self, answers: Mapping[int, Answer | None]) -> list[list[Batch]]:
        """Return micro-batches by update and micro-step, with the fields precomputed by the weights that
        generated the answers.

        Collective: equal forwards on all ranks.
        """
        with ExitStack() as stack:
            for handle in self.handles.values():
                stack.enter_context(handle.averaged())
            return self._precomputed(answers)

    def _precomputed(self, answers: Mapping[int, Answer | None]) -> list[list[Batch]]:
        layout, rows = self.layout.batch_layout, []
        for update in range(self.layout.updates):
            row = []
            for j in range(layout.accumulation):
                batch = answer_batch(
                    [answers[p] for p in layout.positions(update, j, 1 << 62)], self.pad_id, self.dtype
                )
                for wanted in self.algorithm.precomputed_fields():
                    # The engine computed as training does: a forward would give the same numbers.
                    if wanted.known and self.sampling_exact:
                        batch = with_tokens(batch, wanted.name, batch.at_labels(wanted.known))
                        continue
                    local_batch = self.runner.strategy.shard_batch(batch)
                    out = self.runner.forward_no_grad(
                        self.handles, wanted.role, local_batch, frozenset({wanted.output})
                    )
                    batch = with_tokens(batch, wanted.name, out[wanted.output.value])
                row.append(batch)
            rows.append(row)
        return rows

    def evaluate(self, prompts: PackedSource) -> dict[str, float]:
        """Score the greedy answer to every prompt. Collective."""
        return evaluate_answers(
            self.generator, prompts, self.world, self.layout.batch_layout, self.limits, self.is_group_leader
        )

    def check_spread(self, drawn: ScoredRollout) -> list[Diagnostic]:
        """Warn if the rewards of a rollout give no answer an advantage."""
        if not bool(drawn.judged.judged.any()):
            what, hint = (
                "no answer of this rollout was scored, so it has no gradient",
                "find out why the rewards skipped all answers",
            )
        elif self.algorithm.is_flat(drawn.judged.scores, drawn.spread):
            grouped = self.algorithm.uses_group_baseline
            what = "within each group all rewards are equal" if grouped else "all rewards are equal"
            if self.algorithm.learns_kl and not self.filter_groups:
                scaled = ", which normalising enlarges to full size" if self.algorithm.scales_kl else ""
                what += f": this rollout learns from the KL to the reference alone{scaled}"
            else:
                what += ": every advantage is 0, so this rollout has no gradient"
            more = "num_generations of 2 or more" if grouped else "more answers a rollout"
            alone = f"{more}, " if (self.layout.group if grouped else self.layout.answers) == 1 else ""
            warmer = "" if self.sampling.temperature > 0 else "a temperature above 0, or "
            hint = f"use {alone}{warmer}a reward that distinguishes these answers"
            if not bool(drawn.judged.ended[drawn.judged.real > 0].any()):
                hint = f"no answer came to its end: raise max_completion_length or data.max_length; or {hint}"
            if drawn.judged.parts_differ(self.layout.group if grouped else self.layout.answers):
                hint = "its parts differ, but their weighted sums cancel: change their weights"
        else:
            return []
        return [codes.ROLLOUT_NO_SPREAD(what, "training.rollout", hint=hint, severity=Severity.WARNING)]
