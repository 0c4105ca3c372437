"""``training.sft:``, ``training.classification:`` and ``training.distillation:``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import Float, Int, OptInt, OptPath, Section, Word, to_texts


class SftOptions(Section):
    """Supervised fine-tuning; option names as in TRL's SFTConfig."""

    loss_type: Annotated[str, Word("nll", "dft", "eaft")] = Field(
        default="nll",
        description=(
            "nll: the mean negative log-likelihood of the tokens; dft: each token's weighted by its own"
            " probability, without gradient through the weight (dynamic fine-tuning, arXiv:2508.05629); eaft:"
            " by the entropy of its distribution (entropy-adaptive fine-tuning, arXiv:2601.02151)."
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
