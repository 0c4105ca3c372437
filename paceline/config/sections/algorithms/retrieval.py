"""``training.embedding:`` and ``training.reranker:``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.config.sections.types import Bool, Float, Section, Word


class EmbeddingOptions(Section):
    """Embedding models; losses as in sentence-transformers."""

    loss_type: Annotated[str, Word("infonce", "cosine_similarity")] = Field(
        default="infonce",
        description=(
            "With algorithm: embedding, infonce: a query's document against all other documents of the global"
            " batch (MultipleNegativesRankingLoss); cosine_similarity: the squared difference between the"
            " cosine of two texts and their score."
        ),
    )
    pooling: Annotated[str, Word("last", "mean", "cls")] = Field(
        default="last",
        description="Which hidden states stand for a text: the last token's, the mean of all, the first's.",
    )
    normalize: Bool = Field(
        default=True,
        description="Vectors of length 1, so that similarities are cosines; false: dot products.",
    )
    temperature: Float = Field(
        default=0.05,
        gt=0,
        description="With infonce, similarities are divided by it (scale: 20 of sentence-transformers).",
    )
    in_batch_negatives: Bool = Field(
        default=True,
        description="With infonce, false: a query is compared with its own row's documents alone.",
    )
    symmetric: Bool = Field(
        default=False,
        description=(
            "With infonce, each document is compared with all queries too; the loss is the mean of both."
        ),
    )


class RerankerOptions(Section):
    """Rerankers; losses as in sentence-transformers' CrossEncoder and ms-swift."""

    loss_type: Annotated[str, Word("pointwise", "listwise", "list_net")] = Field(
        default="pointwise",
        description=(
            "With algorithm: reranker, pointwise: binary cross-entropy of each document; listwise:"
            " cross-entropy of a query's documents that answer it against all of its row; list_net: the same"
            " with the softmax of the grades as target (ListNetLoss)."
        ),
    )
    temperature: Float = Field(
        default=1.0, gt=0, description="With listwise and list_net, scores are divided by it."
    )
