"""``training.distillation:`` — which teacher, and how its next-token distributions are compared with the student's."""

from __future__ import annotations

from pydantic import Field

from paceline.config.sections.types import Float, OptPath, Section


class DistillationOptions(Section):
    """Knowledge distillation, by the names of TRL's GKDConfig where it has one."""

    teacher_model: OptPath = Field(
        default=None,
        description="With algorithm: distillation, the teacher: a folder or hub name, of the student's own vocabulary.",
    )
    beta: Float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="0: forward KL (teacher ‖ student), 1: reverse KL (student ‖ teacher), between: the generalised Jensen-Shannon divergence.",
    )
    temperature: Float = Field(
        default=1.0, gt=0, description="Logits of both are divided by it before they are compared."
    )
    alpha: Float = Field(
        default=0.0, ge=0, lt=1, description="Share of the SFT loss: (1 - alpha) · divergence + alpha · nll."
    )
