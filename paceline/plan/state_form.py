"""In what form a strategy writes its checkpoints, by which it is known whose it can read. No torch: it is asked before a start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_PLAIN = "plain"


@dataclass(frozen=True)
class StateForm:
    """``tensors``: ``plain`` for blocks of whole tensors under the model's own names, which every strategy of that form reads, however it
    cuts them itself. ``loss_scale``: who keeps fp16's; the numbers of one say nothing to another."""

    tensors: str
    loss_scale: str


_TORCH = StateForm(_PLAIN, "torch's GradScaler")
_DEEPSPEED = StateForm(_PLAIN, "DeepSpeed's loss scaler")
FORMS: Mapping[str, StateForm] = {
    "single": _TORCH,
    "data_parallel": _TORCH,
    "ddp": _TORCH,
    "fsdp": _TORCH,
    "pipeline": _TORCH,
    "deepspeed": _DEEPSPEED,
    "zero1": _DEEPSPEED,
    "zero2": _DEEPSPEED,
    "zero3": _DEEPSPEED,
}


def state_form(strategy: str) -> StateForm:
    """That of a strategy. A class of the user's own, or one that this version does not know, has a form of its own."""
    return FORMS.get(strategy, StateForm(strategy, strategy))


def why_unreadable(before: str, now: str, *, fp16: bool) -> str:
    """Why a run under ``now`` cannot go on from what ``before`` has saved; empty where it can."""
    saved, reads = state_form(before), state_form(now)
    if saved.tensors != reads.tensors:
        return "state in a form of its own is read by the strategy that wrote it alone"
    if fp16 and saved.loss_scale != reads.loss_scale:
        return f"fp16 goes on with its loss scale, {saved.loss_scale} keeps other numbers than {reads.loss_scale}"
    return ""
