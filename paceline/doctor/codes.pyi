# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import CodeName, Diagnostic, Severity

class _DOCTOR_COMPILER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        only: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DOCTOR_FILES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DOCTOR_HEADERS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        only: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DOCTOR_MEMLOCK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DOCTOR_NO_TORCH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DOCTOR_MISMATCH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DOCTOR_NO_FLIGHTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DOCTOR_P2P(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DOCTOR_SHM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DOCTOR_STUCK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

DOCTOR_COMPILER: _DOCTOR_COMPILER
DOCTOR_FILES: _DOCTOR_FILES
DOCTOR_HEADERS: _DOCTOR_HEADERS
DOCTOR_MEMLOCK: _DOCTOR_MEMLOCK
DOCTOR_NO_TORCH: _DOCTOR_NO_TORCH
DOCTOR_MISMATCH: _DOCTOR_MISMATCH
DOCTOR_NO_FLIGHTS: _DOCTOR_NO_FLIGHTS
DOCTOR_P2P: _DOCTOR_P2P
DOCTOR_SHM: _DOCTOR_SHM
DOCTOR_STUCK: _DOCTOR_STUCK
