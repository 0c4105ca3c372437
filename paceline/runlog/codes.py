"""Codes of writing and reading the events of a run."""

from __future__ import annotations

from paceline.core.diagnostics import Code

RUNLOG_EVENTS_LOST = Code(
    "runlog.events_lost",
    "Some events of the run could not be written, most often because the disk was full; pictures show a gap"
    " there. Training itself went on. Free space on that disk.",
)
RUNLOG_LOST = Code(
    "runlog.lost",
    "The system refuses to write the run's events or logs: the disk is full, read-only, over its quota, or a"
    " log was deleted. It is said once, when it begins; training goes on, and so do saves where they can be"
    " written. Events and lines are lost until there is room again, and their number is told then and at the"
    " end.",
)

RUN_FOLDER_GONE = Code(
    "run.folder_gone",
    "The run's folder was deleted, moved or replaced while it trained: logs, events and checkpoints are not"
    " where the run says they are, so it ends at its next step instead of training for nothing. Leave the"
    " folder of a run in place until it has ended.",
)
RUN_CHECKPOINT_GONE = Code(
    "run.checkpoint_gone",
    "The newest checkpoint, which was durable, was taken away while the run went on. Training goes on; until"
    " the next save there is nothing newer to go on from.",
)
