# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _CORE_TARGET(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CORE_TARGET_ATTR(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        module_name: object,
        attr: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CORE_LFS_POINTER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

CORE_TARGET: _CORE_TARGET
CORE_TARGET_ATTR: _CORE_TARGET_ATTR
CORE_TARGET_MODULE: Code
CORE_LFS_POINTER: _CORE_LFS_POINTER
ALGORITHM_UNKNOWN: Code
STRATEGY_UNKNOWN: Code
SEC_TRUST_REMOTE_CODE: Code
