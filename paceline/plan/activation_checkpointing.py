"""What recomputation keeps of a layer: ``gradient_checkpointing_kwargs: {keep: […]}``."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config.sections.training import TrainingSection

KEEP = "keep"
ATTENTION, MATMUL = "attention", "matmul"
KEPT_KINDS: Mapping[str, str] = {
    ATTENTION: "the outputs of attention",
    MATMUL: "those of matrix products",
}


def kept_kinds(training: TrainingSection) -> tuple[str, ...]:
    """Return the kinds of operators whose outputs are kept, in the table's order; empty: everything is
    recomputed.
    """
    value = (training.gradient_checkpointing_kwargs or {}).get(KEEP) or ()
    given = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(kind for kind in KEPT_KINDS if kind in given) if training.gradient_checkpointing else ()
