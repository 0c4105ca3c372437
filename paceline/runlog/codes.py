"""Codes of writing and reading the events of a run."""

from __future__ import annotations

from paceline.core.diagnostics import Code

RUNLOG_EVENTS_LOST = Code(
    "runlog.events_lost",
    "Some events of the run could not be written, usually because the disk was full; plots have a"
    " gap there. Training itself continued. Free disk space.",
)
RUNLOG_LOST = Code(
    "runlog.lost",
    "The system refuses to write the run's events or logs: the disk is full, read-only, over its"
    " quota, or a log was deleted. The message appears once, when this begins; training continues,"
    " and so do saves wherever they can be written. Events and lines are lost until writing works"
    " again, and their number is reported then and at the end.",
)

RUN_FOLDER_GONE = Code(
    "run.folder_gone",
    "The run's folder was deleted, moved or replaced during training: logs, events and checkpoints"
    " are no longer where the run expects them, so it ends at its next step instead of training for"
    " nothing. Leave the folder of a run in place until it has ended.",
)
RUN_CHECKPOINT_GONE = Code(
    "run.checkpoint_gone",
    "The newest checkpoint was removed while the run continued. Training goes on; until the next"
    " save there is nothing newer to resume from.",
)
