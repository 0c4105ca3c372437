# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import CodeName, Diagnostic, Severity

class _BENCH_OPTIONS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _BENCH_RUN_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        size: object,
        processes: object,
        returncode: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEMO_NOT_EMPTY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEMO_NOT_WRITABLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEMO_OPTIONS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DEMO_STEP_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        detail: object,
        returncode: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

BENCH_OPTIONS: _BENCH_OPTIONS
BENCH_RUN_FAILED: _BENCH_RUN_FAILED
DEMO_NOT_EMPTY: _DEMO_NOT_EMPTY
DEMO_NOT_WRITABLE: _DEMO_NOT_WRITABLE
DEMO_OPTIONS: _DEMO_OPTIONS
DEMO_STEP_FAILED: _DEMO_STEP_FAILED
