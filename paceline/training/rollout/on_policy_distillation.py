"""On-policy distillation: the model generates the answers of some rows itself, with the weights of the step
that learns from them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paceline.config.sections.training import TrainingSection
from paceline.core.errors import DataError
from paceline.core.json_types import JsonObject
from paceline.data.packed_source import PackedSource, build_batch
from paceline.data.prepare.prepare import Prepared
from paceline.data.token_table import decode_labels
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.sampling.noise import stream_of
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.hardware.device_kinds import kind_of
from paceline.plan.plan import Plan
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.shard import Shard
from paceline.protocols.window import Report, Window
from paceline.strategies.model_handle import Handle
from paceline.strategies.strategy import Strategy
from paceline.training import codes
from paceline.training.loop.window_source import WindowSource
from paceline.training.rollout.build import local_engine
from paceline.training.rollout.generate import Limits, OpenEngine

_NOISE, _CHOICE = 0, 1  # what a document's two random streams are for
_LEAST = 2  # tokens of a prompt: a row that is learnt from its second token on has none

Documents = list[NDArray[np.int32]]


@dataclass
class OwnAnswers:
    """The windows of ``rows``, with answers of the model's own in a ``fraction`` of the documents (Agarwal et
    al. 2023, arXiv:2306.13649, algorithm 1, which draws once for a whole batch).

    The choice of a document and its noise follow from (seed, epoch, document) alone. The answer is generated
    with the weights before the window's step. So it is the same on any number of ranks, under any split of a
    step and after a resume, without further state in a checkpoint. A document without a prompt stays as it
    is.
    """

    rows: WindowSource
    strategy: Strategy
    policy: Handle
    open_engine: OpenEngine
    fraction: float
    sampling: RolloutSampling
    limits: Limits
    seed: int
    pin: bool = False
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)

    def __iter__(self) -> Iterator[Window]:
        with contextlib.closing(iter(self.rows)) as windows:
            for window in windows:
                yield self.answered(window)

    def filler(self) -> Batch:
        """Return a micro-batch of weight 0."""
        return self.rows.filler()

    def state(self) -> JsonObject:
        """Return no state: answers follow from step and weights."""
        return self.rows.state()

    def shards(self, step: int) -> Iterator[Shard]:
        """Yield nothing: only the position must be kept."""
        yield from self.rows.shards(step)

    def answered(self, window: Window) -> Window:
        """Return ``window`` with the chosen documents' answers replaced. Collective, also for a rank without
        chosen documents.
        """
        begun = self.clock()
        requests: dict[tuple[int, int], Request] = {}
        cut = [coded_documents(batch) for batch in window.micro_batches]
        for j, batch in enumerate(window.micro_batches):
            for d, document in enumerate(batch.document_ids.tolist()):
                prompt = prompt_length(cut[j][d])
                if prompt and chosen(self.seed, window.epoch, document, self.fraction):
                    ids = tuple(decode_labels(cut[j][d][:prompt])[0].tolist())
                    stream = stream_of(self.seed, window.epoch, document, _NOISE)
                    requests[j, d] = Request(ids, stream, self.limits.room(ids))
        with self.strategy.generating(self.policy) as root:
            written = self.open_engine(root).generate(list(requests.values()), self.sampling)
        for (j, d), request, completion in zip(requests, requests.values(), written, strict=True):
            # The whole prompt loses its loss, earlier turns of the assistant too.
            cut[j][d] = np.array([*(~t for t in request.prompt), *completion.tokens], np.int32)
        changed = {j for j, _ in requests}
        batches = [
            self._rebuilt(b, cut[j]) if j in changed else b for j, b in enumerate(window.micro_batches)
        ]
        return replace(window, micro_batches=batches, report=self._report(written, self.clock() - begun))

    def _rebuilt(self, batch: Batch, documents: Documents) -> Batch:
        rebuilt = build_batch(documents, batch.document_ids.tolist(), batch.num_rows)
        rebuilt = replace(rebuilt, extras=batch.extras)
        return rebuilt.pinned() if self.pin else rebuilt

    def _report(self, written: Sequence[Completion], seconds: float) -> Report:
        sums = [
            float(len(written)),
            float(sum(len(c.tokens) for c in written)),
            float(sum(c.ended for c in written)),
        ]
        count, tokens, ended = self.strategy.world.all_reduce_sum_float(sums)
        metrics = {"own_answers": count, "time/generate": seconds}
        if count:
            metrics |= {"completion_length": tokens / count, "truncated": 1.0 - ended / count}
        return Report(metrics, seconds=seconds)


def chosen(seed: int, epoch: int, document: int, fraction: float) -> bool:
    """Whether the model answers this document in this epoch: with probability ``fraction``, always for 1."""
    # The hash is signed; moved, it is uniform in 0 … 2⁶⁴ - 1, all of it below for 1.
    return stream_of(seed, epoch, document, _CHOICE) + (1 << 63) < int(fraction * (1 << 64))


def coded_documents(batch: Batch) -> Documents:
    """Return the documents of a batch in a token table's encoding: a token with loss as itself, another as
    its complement.
    """
    ids = batch.input_ids[0].numpy().astype(np.int32)
    has_loss = np.zeros(len(ids), bool)
    # Labels are shifted: position i is labelled with token i + 1.
    has_loss[1:] = (batch.labels[0] != IGNORE_INDEX).numpy()[:-1]
    return np.split(np.where(has_loss, ids, ~ids), batch.cu_seqlens.tolist()[1:-1])


def prompt_length(document: NDArray[np.int32]) -> int:
    """Return the number of tokens before the last run of tokens with loss; 0 without such a run, or without a
    prompt before it."""
    labelled = np.flatnonzero(document >= 0)
    if not len(labelled):
        return 0
    # The last unlabelled token before the last labelled one ends the prompt; earlier turns belong to it.
    before = np.flatnonzero(document[: labelled[-1]] < 0)
    length = int(before[-1]) + 1 if len(before) else 0
    return length if length >= _LEAST else 0


def own_answers(
    rows: WindowSource,
    source: PackedSource,
    plan: Plan,
    training: TrainingSection,
    prepared: Prepared,
    strategy: Strategy,
    policy: Handle,
) -> OwnAnswers:
    """Return the windows of a run, with generated answers if the config asks for them. Raises DataError where
    no row of ``source`` has a prompt.
    """
    spec = algorithm_spec(plan.algorithm)
    options = spec.generation(training)
    assert options is not None
    table, fraction = source.table, spec.own_fraction(training)
    if not any(prompt_length(table.coded(i)) for i in range(len(table))):
        raise DataError(
            codes.TRAINING_NO_PROMPTS(
                f"{spec.key}.{spec.own_answers}",
                f"{len(table):,} documents that carry loss from their first tokens",
                own_answers=spec.own_answers,
            )
        )
    return OwnAnswers(
        rows,
        strategy,
        policy,
        lambda root: local_engine(root, prepared, strategy, options.generation_rows),
        fraction,
        RolloutSampling(options.temperature, options.top_p, options.top_k),
        Limits(options.max_completion_length, plan.seq_len),
        training.seed,
        training.dataloader_pin_memory and kind_of(strategy.world.device.type).pins,
    )
