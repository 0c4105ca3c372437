"""Specs of embedding models and rerankers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.config.sections.algorithms.retrieval import EmbeddingOptions
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.plan import codes
from paceline.plan.algorithms.spec import AlgorithmSpec, Training
from paceline.plan.plan import JobToCheck, Plan
from paceline.plan.strategy_options import ThreadOptions

_OF_INFONCE = ("temperature", "in_batch_negatives", "symmetric")


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

    def check_plan(self, plan: Plan) -> Iterator[Diagnostic]:
        """Yield embedding.devices, since each thread would compare only its part of the documents."""
        if isinstance(plan.engine, ThreadOptions) and plan.engine.devices > 1:
            yield codes.EMBEDDING_DEVICES("training.distributed_strategy", f"{plan.engine.devices} devices")


EMBEDDING = EmbeddingSpec(
    "embedding",
    "retrieval",
    trains="embedding",
    outputs=("hidden",),
    whole_answers=True,
    evaluated=("eval_loss", "eval_accuracy", "eval_mrr", "eval_recall_at_10"),
    loaded_by="SentenceTransformer",
)
RERANKER = AlgorithmSpec(
    "reranker",
    "ranked",
    trains="reward",
    outputs=("scores",),
    whole_answers=True,
    evaluated=("eval_loss", "eval_accuracy"),
    loaded_by="CrossEncoder",
    scores_pairs=True,
)
