"""Which implementation of the variable-length flash kernel runs: torch's own (FlashAttention-2), or a newer
one that torch puts in its place if its package is installed and the card is one that it was written for.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.plan.model.attention_kernel import AttentionCall, flash_width

FA3, FA4 = "FA3", "FA4"  # torch's names (``torch.nn.attention.list_flash_attention_impls``)
#: by name: capabilities (whole numbers) that torch's adapter asks for, and the largest head of its backward
_VERSIONS = {FA3: ((9,), 256), FA4: ((9, 10), 128)}
LABELS = {FA3: "FlashAttention-3", FA4: "FlashAttention-4"}


def flash_version(capability: float | None, installed: Sequence[str], call: AttentionCall) -> str:
    """Return FA3, FA4, or empty for torch's own; the first that fits. ``installed``: of these two."""
    width = flash_width(call.width, call.value_width)
    for name, (cards, largest) in _VERSIONS.items():
        if name in installed and capability is not None and int(capability) in cards and width <= largest:
            return name
    return ""
