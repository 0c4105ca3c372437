# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import CodeName, Diagnostic, Severity

class _REHEARSE_STAGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        stage: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_LOSS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        step: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_SKIPPED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_STEP_GROWS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        ratio: object,
        steps: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_MEMORY_GROWS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        step: object,
        full: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_MEMORY_FULL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        share: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_MEMORY_PLAN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        ratio: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_DATA(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        share: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_EVAL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        share: object,
        steps: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_SAVE_SLOW(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        share: object,
        steps: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_WARNINGS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_DISK_FULL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        needed: object,
        fit: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_LEFT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        number: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_PARTED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        stage: object,
        step: object,
        difference: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_STOP_SLOW(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        seconds: object,
        notice: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_WORLD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        ranks: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_EXPORT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REHEARSE_FOLDER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

REHEARSE_STAGE: _REHEARSE_STAGE
REHEARSE_LOSS: _REHEARSE_LOSS
REHEARSE_SKIPPED: _REHEARSE_SKIPPED
REHEARSE_STEP_GROWS: _REHEARSE_STEP_GROWS
REHEARSE_MEMORY_GROWS: _REHEARSE_MEMORY_GROWS
REHEARSE_MEMORY_FULL: _REHEARSE_MEMORY_FULL
REHEARSE_MEMORY_PLAN: _REHEARSE_MEMORY_PLAN
REHEARSE_DATA: _REHEARSE_DATA
REHEARSE_EVAL: _REHEARSE_EVAL
REHEARSE_SAVE_SLOW: _REHEARSE_SAVE_SLOW
REHEARSE_WARNINGS: _REHEARSE_WARNINGS
REHEARSE_DISK_FULL: _REHEARSE_DISK_FULL
REHEARSE_LEFT: _REHEARSE_LEFT
REHEARSE_PARTED: _REHEARSE_PARTED
REHEARSE_STOP_SLOW: _REHEARSE_STOP_SLOW
REHEARSE_WORLD: _REHEARSE_WORLD
REHEARSE_EXPORT: _REHEARSE_EXPORT
REHEARSE_FOLDER: _REHEARSE_FOLDER
