"""In what form a strategy writes its checkpoints, by which it is known whose it can read. No torch: it is asked before a start."""

from __future__ import annotations

from dataclasses import dataclass

_PLAIN = "plain"


@dataclass(frozen=True)
class StateForm:
    """``tensors``: ``plain`` for blocks of whole tensors under the model's own names, which every strategy of that form reads, however it
    cuts them itself. ``loss_scale``: who keeps fp16's; the numbers of one say nothing to another."""

    tensors: str
    loss_scale: str


TORCH = StateForm(_PLAIN, "torch's GradScaler")
DEEPSPEED = StateForm(_PLAIN, "DeepSpeed's loss scaler")


def why_unreadable(saved: StateForm, reads: StateForm, *, fp16: bool) -> str:
    """Why a run that ``reads`` one form cannot go on from what was ``saved`` in another; empty where it can."""
    if saved.tensors != reads.tensors:
        return "state in a form of its own is read by the strategy that wrote it alone"
    if fp16 and saved.loss_scale != reads.loss_scale:
        return f"fp16 goes on with its loss scale, {saved.loss_scale} keeps other numbers than {reads.loss_scale}"
    return ""
