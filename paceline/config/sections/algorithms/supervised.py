"""``training.sft:``, ``classification:``, ``distillation:``, ``embedding:`` and ``reranker:``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import Bool, Float, Int, OptInt, OptPath, Section, Word, to_texts


class SftOptions(Section):
    """Supervised fine-tuning; option names as in TRL's SFTConfig."""

    loss_type: Annotated[str, Word("nll", "dft", "eaft")] = Field(
        default="nll",
        description=(
            "nll: the mean negative log-likelihood of the tokens; dft: each token's weighted by its own"
            " probability, without gradient through the weight (dynamic fine-tuning, arXiv:2508.05629); eaft:"
            " by the entropy of the 20 likeliest tokens (entropy-adaptive fine-tuning, arXiv:2601.02151)."
        ),
    )
    eaft_alpha: Float = Field(
        default=1.0, ge=0, description="With loss_type: eaft, the exponent of the entropy over 3 nats."
    )


class ClassificationOptions(Section):
    """Sequence classification; option names as in Transformers' configs."""

    labels: Annotated[tuple[str, ...], BeforeValidator(to_texts)] = Field(
        default=(),
        description=(
            "With algorithm: classification, the class names in the order of their ids "
            "(id2label). When empty they come from the data: numbers as they are, names in "
            "alphabetical order."
        ),
    )
    num_labels: OptInt = Field(
        default=None,
        ge=1,
        description="Number of classes if labels are numbers; from the data when empty.",
    )
    problem_type: Annotated[
        str, Word("auto", "single_label_classification", "multi_label_classification")
    ] = Field(
        default="auto",
        description=(
            "One class per row (cross-entropy), or several (binary cross-entropy per class); "
            "auto: several if a label is a list."
        ),
    )


class DistillationOptions(Section):
    """Knowledge distillation; option names as in TRL's GKDConfig where it has them."""

    teacher_model: OptPath = Field(
        default=None,
        description=(
            "With algorithm: distillation, the teacher: a folder or hub name. It must have "
            "the student's vocabulary."
        ),
    )
    beta: Float = Field(
        default=0.5,
        ge=0,
        le=1,
        description=(
            "0: forward KL (teacher ‖ student), 1: reverse KL (student ‖ teacher), between: the generalised"
            " Jensen-Shannon divergence."
        ),
    )
    temperature: Float = Field(
        default=1.0, gt=0, description="Softmax temperature of both models: their logits are divided by it."
    )
    alpha: Float = Field(
        default=0.0, ge=0, lt=1, description="Weight of the SFT loss: (1 - alpha) · divergence + alpha · nll."
    )
    loss_type: Annotated[str, Word("mixed", "asft")] = Field(
        default="mixed",
        description=(
            "mixed: as alpha says; asft: dft + alpha · divergence, where the teacher is the model before the"
            " training (anchored SFT, arXiv:2509.23753)."
        ),
    )
    lmbda: Float = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "On-policy distillation: the fraction of rows whose answer the student writes itself, anew in"
            " each step; 0: all answers are the data's."
        ),
    )
    max_completion_length: Int = Field(
        default=128,
        ge=1,
        description=(
            "With lmbda above 0, the student's longest answer in tokens; prompt and answer together at most"
            " data.max_length."
        ),
    )
    sampling_temperature: Float = Field(
        default=1.0,
        ge=0,
        description=(
            "With lmbda above 0, sampling temperature of the student's answers; 0: greedy decoding."
        ),
    )


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
