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


TORCH_FORM = StateForm(_PLAIN, "torch's GradScaler")
DEEPSPEED_FORM = StateForm(_PLAIN, "DeepSpeed's loss scaler")


def why_unreadable(saved: StateForm, reads: StateForm, *, fp16: bool) -> str:
    """Return why a run that ``reads`` one format cannot resume from ``saved``; empty if it can."""
    if saved.tensors != reads.tensors:
        return "state in an engine's own format can be read only by the strategy that wrote it"
    if fp16 and saved.loss_scale != reads.loss_scale:
        return (
            f"fp16 resumes with its loss scale, but {saved.loss_scale} stores other values than"
            f" {reads.loss_scale}"
        )
    return ""
