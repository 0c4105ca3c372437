# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _CLI_DEFECT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_FLAG_NOT_KEPT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        says: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_TWO_COMMAND_LINES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_ALGORITHM_LOST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_PAGE_PACKAGES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_SERVE_PACKAGES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_PORT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_UNKNOWN_CODE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_UNKNOWN_VERB(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        kind: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_NO_LOG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_DOCTOR_LOG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CLI_DOCTOR_NO_LOG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_LIMIT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_ALGORITHM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        names: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_BITS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_NO_CLOSED_FORM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PLAN_NO_TORCH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

CLI_DEFECT: _CLI_DEFECT
CLI_MODE: Code
CLI_FLAG_NOT_KEPT: _CLI_FLAG_NOT_KEPT
CLI_TWO_COMMAND_LINES: _CLI_TWO_COMMAND_LINES
CLI_OPTION: Code
CLI_ALGORITHM_LOST: _CLI_ALGORITHM_LOST
CLI_SYSTEM: Code
CLI_PAGE_PACKAGES: _CLI_PAGE_PACKAGES
CLI_SERVE_PACKAGES: _CLI_SERVE_PACKAGES
CLI_PORT: _CLI_PORT
CLI_UNKNOWN_CODE: _CLI_UNKNOWN_CODE
CLI_UNKNOWN_VERB: _CLI_UNKNOWN_VERB
CLI_NO_LOG: _CLI_NO_LOG
CLI_DOCTOR_LOG: _CLI_DOCTOR_LOG
CLI_DOCTOR_NO_LOG: _CLI_DOCTOR_NO_LOG
PLAN_SUBJECT: Code
PLAN_LIMIT: _PLAN_LIMIT
PLAN_ALGORITHM: _PLAN_ALGORITHM
PLAN_BITS: _PLAN_BITS
PLAN_NO_CLOSED_FORM: _PLAN_NO_CLOSED_FORM
PLAN_NO_TORCH: _PLAN_NO_TORCH
LAUNCH_MANY_TIMES: Code
