"""``lora:``, ``generation:`` and ``launch:`` — the small sections."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import Bool, Float, Int, OptInt, Section, Text, Texts, Word, optional, to_int


def _bits(value: Any) -> int | None:
    bits = optional(to_int)(value)
    return None if bits in (None, 0) else int(bits)


class LoraSection(Section):
    """Train low-rank adapters instead of all weights. The section's presence turns it on."""

    r: Int = Field(default=8, ge=1, description="Rank of the adapters.")
    alpha: OptInt = Field(default=None, ge=1, description="Scale of the adapters; twice the rank when empty.")
    dropout: Float = Field(default=0.0, ge=0, lt=1, description="Dropout before the adapters.")
    target_modules: Texts = Field(
        default=("all-linear",),
        description="Modules that get an adapter; all-linear means every linear layer but the head.",
    )
    modules_to_save: Texts = Field(default=(), description="Modules trained in full beside the adapters.")
    bias: Annotated[str, Word("none", "all", "lora_only")] = Field(
        default="none", description="Which biases are trained."
    )
    use_rslora: Bool = Field(default=False, description="Scale by alpha / sqrt(r) instead of alpha / r.")
    quantization_bit: Annotated[int | None, BeforeValidator(_bits)] = Field(
        default=None, description="4 or 8: keep the frozen weights quantised (QLoRA)."
    )
    quantization_type: Text = Field(default="nf4", description="4-bit number format: nf4 or fp4.")


class GenerationSection(Section):
    """How answers are written in evaluation and chat."""

    max_new_tokens: Int = Field(default=128, ge=1, description="Longest answer in tokens.")
    temperature: Float = Field(default=0.0, ge=0, description="0 takes the likeliest token; above 0 samples.")
    top_p: Float = Field(
        default=1.0, gt=0, le=1, description="Sample from the smallest set of tokens with this probability."
    )
    top_k: Int = Field(default=0, ge=0, description="Sample from the k likeliest tokens; 0 means no limit.")


class LaunchSection(Section):
    """How many processes, on how many machines. Launcher flags say the same and win."""

    nproc: OptInt = Field(
        default=None, ge=1, description="Processes on this node; one per accelerator (or 1 on a CPU) when empty."
    )
    nnodes: Int = Field(default=1, ge=1, description="Number of nodes.")
    node_rank: Int = Field(default=0, ge=0, description="Rank of this node.")
    master_addr: Text = Field(default="127.0.0.1", description="Address of node 0.")
    master_port: OptInt = Field(
        default=None, description="Port on node 0; a free one is found when empty (one node only)."
    )
