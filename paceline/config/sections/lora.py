"""``lora:`` — adapters and quantisation."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import (
    Bool,
    Int,
    OptFloat,
    OptInt,
    OptPath,
    Section,
    Texts,
    Word,
    misfit,
    optional,
    to_int,
    to_texts,
)
from paceline.core.json_types import Json


def to_targets(value: Json) -> tuple[str, ...]:
    """Convert target modules: a regular expression stays one string, other values become a list of names."""
    names = (value.strip(),) if isinstance(value, str) and is_pattern(value) else to_texts(value)
    for name in filter(is_pattern, names):
        try:
            re.compile(name)
        except re.error as error:
            raise misfit(f"is no regular expression: {error}") from None
    return names


def _init(value: Json) -> str | None:
    """Return pissa or olora, or None for peft's ``true``."""
    text = str(value).strip().lower()
    if value is None or text in ("", "true"):
        return None
    if text in ("pissa", "olora"):
        return text
    random = text.startswith("pissa_niter")
    why = ": an approximation by random numbers leaves another base at each start" if random else ""
    raise misfit(f"must be pissa, olora or true{why}")


class LoraSection(Section):
    """Train low-rank adapters instead of all weights; on when the section is present."""

    r: Int = Field(default=8, ge=1, description="Rank of the adapters.")
    alpha: OptInt = Field(
        default=None,
        ge=1,
        description="Scaling numerator alpha (scale = alpha / r); twice the rank when empty.",
    )
    dropout: OptFloat = Field(
        default=None,
        ge=0,
        lt=1,
        description="Dropout on the adapters' input; when empty that of adapter_name_or_path, else 0.",
    )
    target_modules: Annotated[tuple[str, ...], BeforeValidator(to_targets)] = Field(
        default=("all-linear",),
        description=(
            "Modules that get an adapter: suffixes of their names, or one regular expression "
            "for full names; all-linear is every linear layer but the head (in a mixture of "
            "experts without the experts)."
        ),
    )
    target_parameters: Texts = Field(
        default=(),
        description=(
            "Tensors of fused experts that get an adapter an expert, by suffixes of their names, as in peft:"
            " [mlp.experts.gate_up_proj, mlp.experts.down_proj]."
        ),
    )
    modules_to_save: Texts = Field(
        default=(),
        description=(
            "Modules trained in full in addition to the adapters, by the ends of their names as in peft:"
            " [embed_tokens, lm_head]; norm is every norm. They get no adapter."
        ),
    )
    bias: Annotated[str, Word("none", "all", "lora_only")] = Field(
        default="none", description="Which biases are trained."
    )
    use_dora: Bool = Field(
        default=False,
        description=(
            "DoRA: also train the length of each row of an adapted weight, apart from its direction. Single,"
            " ddp, fsdp, zero1 and zero2."
        ),
    )
    oft_block_size: OptInt = Field(
        default=None,
        ge=2,
        description=(
            "OFT in place of LoRA: each adapted layer's inputs are rotated in blocks of this many (peft's"
            " default is 32), without r, alpha and dropout. Single, ddp, fsdp, zero1 and zero2."
        ),
    )
    loraplus_lr_ratio: OptFloat = Field(
        default=None,
        gt=0,
        description=(
            "LoRA+: the learning rate of the adapters' B (and of vectors) is this many times the others'."
        ),
    )
    use_rslora: Bool = Field(default=False, description="Scale by alpha / sqrt(r) instead of alpha / r.")
    init_lora_weights: Annotated[str | None, BeforeValidator(_init)] = Field(
        default=None,
        description=(
            "pissa or olora: the adapters begin with a part of the base weights, which keep the rest, as in"
            " peft; when empty they begin at zero (peft's true)."
        ),
    )
    quantization_bit: Annotated[
        int | None, BeforeValidator(lambda value: optional(to_int)(value) or None)
    ] = Field(default=None, description="4: quantise the frozen weights to 4 bits (QLoRA).")
    quantization_type: Annotated[str, Word("nf4", "fp4")] = Field(
        default="nf4", description="4-bit number format: nf4 or fp4."
    )
    double_quant: Bool = Field(default=True, description="Also quantise the scales of the 4-bit blocks.")
    adapter_name_or_path: OptPath = Field(
        default=None,
        description=(
            "Folder of a peft adapter (LoRA, PiSSA, OLoRA, OFT) to continue training; its rank, alpha, layers"
            " and init_lora_weights are used."
        ),
    )


_MARKS = frozenset("()[]{}|*+?^$\\")


def is_pattern(text: str) -> bool:
    """Whether ``text`` contains a regular-expression metacharacter.

    A dot does not count: module names have it.
    """
    return any(mark in text for mark in _MARKS)
