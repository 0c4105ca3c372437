# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _SCHEDULERS_GPUS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_UNPLANNED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_VALUE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        scheduler: object,
        reason: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_SECRET(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_VARIABLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_OVERWRITE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        run: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_RESUME(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_FILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        reason: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_PROGRAM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_REFUSED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        reason: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_OUTSIDE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        folder: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_LOST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_LOCAL_PATH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        folder: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_TASK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_PLACEMENT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_UNKNOWN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_NO_RECORD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_ELSEWHERE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_RUNS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SCHEDULERS_FILES_GONE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        scheduler: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

SCHEDULERS_GPUS: _SCHEDULERS_GPUS
SCHEDULERS_UNPLANNED: _SCHEDULERS_UNPLANNED
SCHEDULERS_VALUE: _SCHEDULERS_VALUE
SCHEDULERS_SECRET: _SCHEDULERS_SECRET
SCHEDULERS_VARIABLE: _SCHEDULERS_VARIABLE
SCHEDULERS_OVERWRITE: _SCHEDULERS_OVERWRITE
SCHEDULERS_RESUME: _SCHEDULERS_RESUME
SCHEDULERS_FILE: _SCHEDULERS_FILE
SCHEDULERS_PROGRAM: _SCHEDULERS_PROGRAM
SCHEDULERS_REFUSED: _SCHEDULERS_REFUSED
SCHEDULERS_OUTSIDE: _SCHEDULERS_OUTSIDE
SCHEDULERS_LOST: _SCHEDULERS_LOST
SCHEDULERS_LOCAL_PATH: _SCHEDULERS_LOCAL_PATH
SCHEDULERS_TASK: _SCHEDULERS_TASK
SCHEDULERS_PLACEMENT: _SCHEDULERS_PLACEMENT
SCHEDULERS_UNKNOWN: _SCHEDULERS_UNKNOWN
SCHEDULERS_NO_RECORD: _SCHEDULERS_NO_RECORD
SCHEDULERS_ELSEWHERE: _SCHEDULERS_ELSEWHERE
SCHEDULERS_RUNS: _SCHEDULERS_RUNS
SCHEDULERS_FILES_GONE: _SCHEDULERS_FILES_GONE
SCHEDULERS_HOSTFILE: Code
