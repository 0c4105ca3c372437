"""Checkpoint formats of strategies: which strategy can read whose checkpoints.

No torch (checked before launch).
"""

from __future__ import annotations

from dataclasses import dataclass

_PLAIN = "plain"


@dataclass(frozen=True)
class StateForm:
    """A checkpoint format.

    ``tensors``: ``plain`` means blocks of whole tensors under the model's own names, readable by every
    strategy with this format, however it shards them. ``loss_scale``: which scaler holds fp16's loss scale;
    their states are incompatible.
    """

    tensors: str
    loss_scale: str


TORCH = StateForm(_PLAIN, "torch's GradScaler")
DEEPSPEED = StateForm(_PLAIN, "DeepSpeed's loss scaler")


def why_unreadable(saved: StateForm, reads: StateForm, *, fp16: bool) -> str:
    """Return why a run that ``reads`` one format cannot resume from ``saved``; empty if it can."""
    if saved.tensors != reads.tensors:
        return "state in a form of its own is read by the strategy that wrote it alone"
    if fp16 and saved.loss_scale != reads.loss_scale:
        return (
            f"fp16 goes on with its loss scale, {saved.loss_scale} keeps other numbers than"
            f" {reads.loss_scale}"
        )
    return ""
