"""How each trainer goes on from a checkpoint, and what a log shows to be lost."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.doctor.logs.reader import LogFacts
from paceline.doctor.logs.trainers import TRAINERS
from paceline.doctor.logs.verdict import FirstCause

_JOB = re.compile(r"(?:JOB|JobId=|StepId=|STEP) ?(\d+)")


_NEEDS = {"yes": "", "elsewhere": "leave that node out, then: ", "changed": "change that, then: "}


def lost(logs: Sequence[LogFacts]) -> str:
    """Say which steps the logs show to be lost."""
    last = max((facts.progress.last for facts in logs if facts.progress.last is not None), default=None)
    saving = next((facts.progress for facts in logs if facts.progress.saved), None)
    if last is None:
        return "nothing: these logs show no step"
    if saving is None:
        return f"up to step {last}: these logs name no checkpoint"
    if saving.saved_step is None:
        return f"what came after {saving.saved}"
    steps = last - saving.saved_step
    what = (
        f"{steps} step{'' if steps == 1 else 's'} ({saving.saved_step + 1} to {last})"
        if steps > 0
        else "nothing"
    )
    return f"{what}, if {saving.saved} is whole"


def go_on(verdict: FirstCause, logs: Sequence[LogFacts]) -> str:
    """Return the command that goes on, with what it needs first."""
    path = next((facts.progress.saved for facts in logs if facts.progress.saved), "")
    name = next((facts.trainer for facts in logs if facts.trainer), "")
    trainer = next((trainer for trainer in TRAINERS if trainer.name == name), None)
    needs = _NEEDS[verdict.root.cause.go_on] if verdict.root is not None else "find the cause, then: "
    if not path:
        return f"{needs}the same command; these logs name no checkpoint to go on from"
    if needs == "" and verdict.root is not None and (job := _JOB.search(verdict.root.text)):
        return f"scontrol requeue {job[1]}, if its script goes on from {path} by itself"
    if trainer is None:
        return f"{needs}the same command, from {path}"
    return needs + trainer.command.format(path=path)
