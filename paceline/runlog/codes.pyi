# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from paceline.core.diagnostics import Code

RUNLOG_EVENTS_LOST: Code
RUNLOG_LOST: Code
RUN_FOLDER_GONE: Code
RUN_CHECKPOINT_GONE: Code
