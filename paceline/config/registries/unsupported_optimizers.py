"""Transformers' optimizer names that are not supported: why, and what to write instead. Imports no torch."""

from __future__ import annotations

import re

from paceline.config.registries.optimizers import BUILT

# (pattern of names, reason, alternative)
_NOT_BUILT: tuple[tuple[str, str, str], ...] = (
    ("(paged_)?ademamix.*", "AdEMAMix is not supported", "adamw_torch_fused"),
    (
        "galore_adamw_layerwise",
        "each layer would be updated within the backward; the updates are galore_adamw's",
        "galore_adamw, with max_grad_norm: 0 for the same numbers",
    ),
    ("galore_.*", "of GaLore's optimizers AdamW is supported", "galore_adamw"),
    (
        "apollo_.*",
        "APOLLO's package is not used",
        "galore_adamw, or adamw_torch_fused with lora:, which trains low-rank updates",
    ),
    (
        "lomo|adalomo",
        "an update fused into the backward needs an extra package that is not used here",
        "adafactor, whose states are small, or sgd",
    ),
    ("adamw_torch_xla|adamw_torch_npu_fused", "it is for another type of device", "adamw_torch_fused"),
    (
        "adamw_apex_fused",
        "Apex is not used; torch's fused AdamW computes the same update",
        "adamw_torch_fused",
    ),
    ("adamw_anyprecision", "it needs torchdistx, which is no longer maintained", "adamw_torch_fused"),
    ("grokadamw|stable_adamw", "it needs an extra package that is not used here", "adamw_torch_fused"),
)
#: Transformers' names that are known but not supported
KNOWN = (
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
    "adamw_apex_fused",
    "adamw_anyprecision",
    "ademamix",
    "ademamix_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "galore_adamw_8bit",
    "galore_adafactor",
    "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise",
    "lomo",
    "adalomo",
    "grokadamw",
    "apollo_adamw",
    "apollo_adamw_layerwise",
    "stable_adamw",
)


def not_built(name: str) -> tuple[str, str]:
    """Return (reason, alternative) for a name that is not in ``BUILT``."""
    for pattern, why, instead in _NOT_BUILT:
        if re.fullmatch(pattern, name):
            return why, instead
    return "there is no optimizer of this name", f"one of {', '.join(BUILT)}"
