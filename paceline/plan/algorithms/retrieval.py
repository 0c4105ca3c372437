"""Specs of embedding models and rerankers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.config.sections.algorithms.supervised import EmbeddingOptions, RerankerOptions
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.plan import codes
from paceline.plan.algorithms.spec import AlgorithmSpec, Training
from paceline.plan.plan import JobToCheck, Plan
from paceline.plan.strategy_options import ThreadOptions

_OF_INFONCE = ("temperature", "in_batch_negatives", "symmetric")
_POSITIVE = 1  # the part of a row that is the query's document, behind the query's 0
#: The grades that a loss reads
_GRADES = {"cosine_similarity": (-1.0, 1.0), "pointwise": (0.0, 1.0), "listwise": (0.0, math.inf)}


@dataclass(frozen=True)
class EmbeddingSpec(AlgorithmSpec):
    """A trunk without a head, and losses over all documents of a step."""

    def head_outputs(self, training: Training) -> int:
        """Return 0: the trunk has no head."""
        return 0

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        """Yield embedding.loss_type for options and metrics that the pair loss does not have."""
        options = job.own_options
        if not isinstance(options, EmbeddingOptions) or options.loss_type == "infonce":
            return
        defaults = EmbeddingOptions()
        for name in (n for n in _OF_INFONCE if getattr(options, n) != getattr(defaults, n)):
            yield job.problem(
                codes.EMBEDDING_LOSS_TYPE,
                "it is an option of infonce, but the loss is cosine_similarity",
                f"{self.key}.{name}",
                f"{self.key}.loss_type",
                hint="remove it, or set loss_type: infonce",
                severity=Severity.WARNING,
            )
        best = job.config.training.metric_for_best_model or ""
        if best.removeprefix("eval_") in ("accuracy", "mrr", "recall_at_10"):
            yield job.problem(
                codes.EMBEDDING_LOSS_TYPE,
                "pairs with a score have no retrieval to measure",
                "training.metric_for_best_model",
                f"{self.key}.loss_type",
                hint="set metric_for_best_model: loss",
            )

    def check_documents(
        self, training: Training, columns: Mapping[str, Sequence[float]], texts: Sequence[str] = ()
    ) -> Iterator[Diagnostic]:
        """retrieval.grades, retrieval.repeated"""
        options = EmbeddingOptions.model_validate(self.options_of(training))
        where = f"{self.key}.loss_type"
        if options.loss_type != "infonce":
            yield from _out_of_range(options.loss_type, columns["score"], where)
            return
        grades = sorted({float(grade) for grade in columns["score"] if not math.isnan(grade)})
        if grades and (grades[0] <= 0 or len(grades) > 1):
            yield codes.RETRIEVAL_GRADES(
                "rows have grades, and infonce draws each query to its document whatever its grade",
                where,
                f"grades from {grades[0]:g} to {grades[-1]:g}",
                "loss_type: cosine_similarity, or documents that do not answer as negative, and no grades",
                Severity.ERROR if grades[0] <= 0 else Severity.WARNING,
            )
        if options.in_batch_negatives and texts:
            for part, name in enumerate(("queries", "documents")):
                counts = Counter(text for text, of in zip(texts, columns["part"], strict=True) if of == part)
                if again := sum(count for count in counts.values() if count > 1):
                    found = f"{again:,} of {counts.total():,} {name}"
                    yield codes.RETRIEVAL_REPEATED(where, found, name=name)

    def check_plan(self, plan: Plan) -> Iterator[Diagnostic]:
        """Yield embedding.devices, since each thread would compare only its part of the documents."""
        if isinstance(plan.engine, ThreadOptions) and plan.engine.devices > 1:
            yield codes.EMBEDDING_DEVICES("training.distributed_strategy", f"{plan.engine.devices} devices")


@dataclass(frozen=True)
class RerankerSpec(AlgorithmSpec):
    """One score for a query read together with a document."""

    def check_documents(
        self, training: Training, columns: Mapping[str, Sequence[float]], texts: Sequence[str] = ()
    ) -> Iterator[Diagnostic]:
        """retrieval.grades"""
        options = RerankerOptions.model_validate(self.options_of(training))
        yield from _out_of_range(options.loss_type, columns["score"], f"{self.key}.loss_type")


def _out_of_range(loss: str, grades: Sequence[float], where: str) -> Iterator[Diagnostic]:
    """Yield an error for grades that the loss cannot read."""
    least, most = _GRADES.get(loss, (-math.inf, math.inf))
    wrong = [float(grade) for grade in grades if not least <= grade <= most]
    if wrong:
        none = any(math.isnan(grade) for grade in wrong)
        yield codes.RETRIEVAL_GRADES(
            f"{loss} reads grades from {least:g} to {most:g}",
            where,
            f"{len(wrong):,} of {len(grades):,} documents: {'no grade' if none else f'{wrong[0]:g}'}",
            "give every row a grade" if none else "bring them into this range (0 to 5 by / 5)",
        )


EMBEDDING = EmbeddingSpec(
    "embedding",
    "retrieval",
    trains="embedding",
    outputs=("hidden",),
    whole_answers=True,
    evaluated=("eval_loss", "eval_accuracy", "eval_mrr", "eval_recall_at_10"),
    loaded_by="SentenceTransformer",
    reads_images=False,
)
RERANKER = RerankerSpec(
    "reranker",
    "ranked",
    trains="reward",
    outputs=("scores",),
    whole_answers=True,
    evaluated=("eval_loss", "eval_accuracy"),
    loaded_by="CrossEncoder",
    scores_pairs=True,
    reads_images=False,
)
