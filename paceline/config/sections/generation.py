"""``generation:`` — sampling in ``paceline chat``."""

from __future__ import annotations

from pydantic import Field

from paceline.config.sections.types import (
    Float,
    Int,
    Section,
)


class GenerationSection(Section):
    """Generation in `paceline chat RUN`; its options (`--temperature 0.7`) take precedence."""

    max_new_tokens: Int = Field(default=128, ge=1, description="Maximum answer length in tokens.")
    temperature: Float = Field(default=0.0, ge=0, description="Sampling temperature; 0: greedy decoding.")
    top_p: Float = Field(
        default=1.0, gt=0, le=1, description="Sample from the smallest set of tokens with this probability."
    )
    top_k: Int = Field(default=0, ge=0, description="Sample from the k likeliest tokens; 0 means no limit.")
