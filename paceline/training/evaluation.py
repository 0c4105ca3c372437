"""Exact evaluation of sets of any size: losses of all rows, and metrics of generated answers.

Every row counts once, for any number of ranks and batch size. With ``training.eval_generate`` every rank
answers its share of the evaluation rows, and metrics compare the answers with the rows' own.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from paceline.config.registries.evaluation_metrics import OF_LENGTH, labels_of, written_out
from paceline.config.sections.rollout import RolloutOptions
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError, PacelineError
from paceline.data.prepare.prepare import Prepared
from paceline.data.token_table import TokenTable, decode_labels
from paceline.data.tokenizer.file_facts import special_texts
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer
from paceline.evaluation import codes as evaluation_codes
from paceline.evaluation.scores.metrics import Pairs, is_corpus, score
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.sampling.noise import stream_of
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch, RowSource
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handle, Handles
from paceline.strategies.strategy import Runner, Strategy
from paceline.training import codes
from paceline.training.loop.window_source import BatchLayout, Prefetcher, read_batch
from paceline.training.rollout.build import local_engine
from paceline.training.rollout.generate import OpenEngine
from paceline.training.rollout.on_policy_distillation import prompt_length


def evaluate(
    runner: Runner,
    handles: Handles,
    algorithm: Objective,
    source: RowSource,
    layout: BatchLayout,
    loading: Prefetcher | None = None,
) -> dict[str, float]:
    """Return ``eval_loss``, ``eval_<metric>`` and ``eval_rows`` over the whole set. Collective.

    The means of ``window_means`` are over the whole set here, computed in a first pass over it. All ranks run
    the same number of micro-batches; beyond the end of the set they get fillers of weight 0. Sums and weights
    are reduced over the ranks and divided once. Raises PacelineError if the counted rows are not the rows of
    the set.
    """
    num_rows = source.num_rows(0)
    rounds = math.ceil(num_rows / (layout.micro_batch * layout.dp_size))
    loading = loading or Prefetcher()

    def read(j: int, others: str = "") -> Batch:
        made = read_batch(source, 0, layout.positions(0, j, num_rows), range(num_rows), others)
        return made.pinned() if loading.pin else made

    # First pass, if the losses need means over the whole set
    means: Mapping[str, float] = {}
    if algorithm.window_means is not None:
        first = partial(read, others=algorithm.window_means.rows)
        with contextlib.closing(loading.in_order(first, range(rounds))) as batches:
            means = runner.window_means(handles, batches, algorithm)
    # Second pass: sums and weights over all ranks, and a check that each row was counted once
    with contextlib.closing(loading.in_order(read, range(rounds))) as batches:
        sums = runner.eval_window(handles, (batch.with_numbers(means) for batch in batches), algorithm)
    if sums.rows != num_rows:
        raise PacelineError(
            codes.TRAINING_EVAL_ROWS("data.eval", f"{sums.rows} rows evaluated of {num_rows}")
        )
    # Divide each sum by its weight: ``metric/term`` is a metric, a bare term is a part of the loss
    metrics = {"eval_rows": float(num_rows)}
    total, weight = 0.0, 0
    averages: dict[str, float] = {}
    for name, value in sums.sums.items():
        metric, _, term = name.rpartition("/")
        over = sums.weights.get(term or name, 0)
        if metric:
            averages[metric] = value / over if over else math.nan
        else:
            total, weight = total + (value / over if over else 0.0), weight + over
    metrics |= {f"eval_{name}": value for name, value in algorithm.summary(averages).items()}
    metrics["eval_loss"] = total if weight else math.nan
    return metrics


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_AT_ONCE = 64  # answers in one message between ranks
_NAMED = 3  # failures that a warning names
Item = TypeVar("Item")
Report = Callable[[Diagnostic], None]


@dataclass(frozen=True)
class ExpectedAnswer:
    """A row of the evaluation data: the prompt and the expected answer (tokens, or text)."""

    row: int
    prompt: tuple[int, ...]
    expected: tuple[int, ...] | str


def expected_answers(table: TokenTable, rows: int | None, *, answered: bool) -> list[ExpectedAnswer]:
    """Return the expected answers of the first ``rows`` rows (None: all) that have a prompt and an answer.

    The answer of a document is its last run of tokens with loss; that of a pair is its first document's. Rows
    that the model answers itself (``answered``) have it as ``answer``.
    """
    count = len(table) // table.group
    answers = []
    for row in range(count if rows is None else min(rows, count)):
        coded = table.coded(row * table.group)
        expected: tuple[int, ...] | str | None = None
        if answered:
            start, answer = len(coded), table.facts(row).get("answer")
            expected = None if answer is None else str(answer)
        elif start := prompt_length(coded):
            end = int(np.flatnonzero(coded >= 0)[-1]) + 1  # tokens without loss may close the row
            expected = tuple(coded[start:end].tolist())
        if expected is not None:
            prompt = decode_labels(coded[:start])[0].tolist()
            answers.append(ExpectedAnswer(row, tuple(prompt), expected))
    return answers


@dataclass
class AnswersMeasured:
    """Generates answers and compares them with ``answers``. Every call is collective.

    - ``positions``: the maximum tokens of prompt and answer together
    - ``leads``: this rank's answers count (it is the first of those that answer the same rows)
    - ``metrics``: names of metrics, without groups
    - ``seconds``: the time limit for the metrics of one evaluation
    - ``report`` gets the findings about answers without a value
    """

    strategy: Strategy
    policy: Handle
    tokenizer: PreTrainedTokenizerBase
    open_engine: OpenEngine
    answers: Sequence[ExpectedAnswer]
    sampling: RolloutSampling
    longest: int
    positions: int
    metrics: Sequence[str]
    seed: int
    leads: bool
    seconds: float
    report: Report

    @property
    def world(self) -> World:
        return self.strategy.world

    def __call__(self) -> dict[str, float]:
        """Return ``eval_METRIC`` of all answers, and their lengths; equal on every rank, for any split of the
        rows.
        """
        questions = self.answers[self.strategy.data_parallel_rank :: self.strategy.data_parallel_size]
        written = self._written(questions)
        pairs = self._pairs(questions, written) if self.leads else []
        each = [name for name in self.metrics if not is_corpus(name)]
        scored = {name: score(name, pairs, until=self.seconds / len(self.metrics)) for name in each if pairs}
        values = [scores.values for scores in scored.values()]
        mine: list[list[float]] = [
            [scores.row, len(answer.tokens), answer.ended, *(column[index] for column in values)]
            for index, (scores, answer) in enumerate(zip(questions, written, strict=True))
            if self.leads
        ]
        # in the order of the data, under every split of the rows
        rows = sorted(self._gathered(mine))
        means = {name: _mean(rows, 3 + index) for index, name in enumerate(each)}
        means |= {name: self._of_all(name, questions, pairs) for name in self.metrics if name not in means}
        failed = [
            (name, questions[index].row, reason)
            for name, scores in scored.items()
            for index, reason in scores.failed
        ]
        self._report_failed(self._gathered(failed), len(rows))
        labels = zip(labels_of(self.metrics), self.metrics, strict=True)
        tokens, ended = OF_LENGTH
        return {
            **{label: means[name] for label, name in labels},
            tokens: _mean(rows, 1),
            ended: _mean(rows, 2),
        }

    def _written(self, questions: Sequence[ExpectedAnswer]) -> list[Completion]:
        requests = [
            Request(
                question.prompt,
                stream_of(self.seed, question.row, 0),
                max(0, min(self.longest, self.positions - len(question.prompt))),
            )
            for question in questions
        ]
        with self.strategy.generating(self.policy) as root:
            return self.open_engine(root).generate(requests, self.sampling)

    def _pairs(self, questions: Sequence[ExpectedAnswer], written: Sequence[Completion]) -> Pairs:
        special = special_texts(self.tokenizer)

        def text(tokens: Sequence[int]) -> str:
            return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

        return [
            (
                text(answer.tokens),
                special.removed_from(question.expected)
                if isinstance(question.expected, str)
                else text(question.expected),
            )
            for question, answer in zip(questions, written, strict=True)
        ]

    def _of_all(self, name: str, questions: Sequence[ExpectedAnswer], pairs: Pairs) -> float:
        """Return a metric of all answers together, which rank 0 computes. Collective."""
        mine = [(question.row, *pair) for question, pair in zip(questions, pairs, strict=False)]
        rows = sorted(self._gathered(mine))
        value: float | None = None
        if self.world.rank == 0:
            result = score(name, [(answer, expected) for _, answer, expected in rows])
            value = None if result.failed else result.mean
            for _, reason in result.failed:
                self._report(name, f"{len(rows):,} of {len(rows):,}", reason, "it is NaN")
        value = self.world.all_gather_json(value)[0]
        return math.nan if value is None else value

    def _gathered(self, mine: Sequence[Item]) -> list[Item]:
        """Return the items of all ranks on every rank, sent in parts of bounded size. Collective."""
        most = max(self.world.all_gather_json(len(mine)))
        parts = [list(mine[start : start + _AT_ONCE]) for start in range(0, most, _AT_ONCE)]
        return [item for part in parts for of_rank in self.world.all_gather_json(part) for item in of_rank]

    def _report_failed(self, failed: Sequence[tuple[str, int, str]], count: int) -> None:
        """Report the answers without a value, on rank 0."""
        for name in dict.fromkeys(failure[0] for failure in failed) if self.world.rank == 0 else ():
            failures = [(row, reason) for of, row, reason in failed if of == name]
            first = "; ".join(f"evaluation row {row + 1}: {reason}" for row, reason in failures[:_NAMED])
            self._report(name, f"{len(failures):,} of {count:,}", first, "they count as 0")

    def _report(self, name: str, share: str, reason: str, outcome: str) -> None:
        self.report(
            evaluation_codes.EVALUATION_METRIC_FAILED(
                "training.eval_metrics", reason, name=name, share=share, outcome=outcome
            )
        )


def _mean(rows: Sequence[Sequence[float]], column: int) -> float:
    return math.fsum(row[column] for row in rows) / len(rows)


def answers_measured(
    plan: Plan,
    training: TrainingSection,
    options: RolloutOptions,
    prepared: Prepared,
    strategy: Strategy,
    policy: Handle,
    report: Report,
) -> tuple[AnswersMeasured, str]:
    """Return the measurement of answers generated with ``options``, and a log line about the rows.

    Raises DataError if no evaluation row can be answered.
    """
    table, spec = prepared.eval, algorithm_spec(plan.algorithm)
    assert table is not None
    expected = expected_answers(table, training.eval_generate_rows, answered=spec.on_policy)
    count = len(table) // table.group
    count = min(count, training.eval_generate_rows or count)
    if not expected:
        raise DataError(codes.TRAINING_EVAL_GENERATE("training.eval_generate", f"{count:,} evaluation rows"))
    coordinates = plan.mesh.coordinates(strategy.world.rank)
    metrics = written_out(training.eval_metrics)
    measured = AnswersMeasured(
        strategy,
        policy,
        open_tokenizer(TokenizerSpec(str(prepared.tokenizer_path))),
        lambda root: local_engine(root, prepared, strategy, options.generation_rows),
        expected,
        RolloutSampling(options.temperature, options.top_p, options.top_k),
        options.max_completion_length,
        (plan.shape.max_position_embeddings or sys.maxsize) if plan.shape else sys.maxsize,
        metrics,
        training.seed,
        leads=not (coordinates.pp or coordinates.cp or coordinates.tp),
        seconds=plan.timeout_seconds / 2,
        report=report,
    )
    left = count - len(expected)
    lack = f"; {left:,} have no prompt or no expected answer" if left else ""
    return measured, f"evaluations answer {len(expected):,} rows{lack}"
