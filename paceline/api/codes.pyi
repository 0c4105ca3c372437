# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _API_NOT_IMPORTABLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _VERIFY_COMPARE_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _VERIFY_RUN_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        returncode: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

API_ARGUMENT: Code
API_NOT_IMPORTABLE: _API_NOT_IMPORTABLE
API_NO_RUN: Code
API_ROWS: Code
API_RUN_FAILED: Code
API_LISTENER: Code
VERIFY_COMPARE_FAILED: _VERIFY_COMPARE_FAILED
VERIFY_RUN_FAILED: _VERIFY_RUN_FAILED
