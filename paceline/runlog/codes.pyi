# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _RUN_CHECKPOINT_GONE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

RUNLOG_EVENTS_LOST: Code
RUNLOG_LOST: Code
RUN_FOLDER_GONE: Code
RUN_CHECKPOINT_GONE: _RUN_CHECKPOINT_GONE
