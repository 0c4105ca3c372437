"""``training.distillation:`` — the teacher, and the divergence of its and the student's predictions."""

from __future__ import annotations

from pydantic import Field

from paceline.config.sections.types import Float, Int, OptPath, Section


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
