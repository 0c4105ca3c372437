# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _REWARDS_NO_ANSWER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        names: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REWARDS_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        label: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REWARDS_TESTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        tests: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REWARDS_CODE_TESTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _REWARDS_NO_NUMBER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EMBEDDING_NO_SCORE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

ALGORITHM_NOT_AN_ALGORITHM: Code
REWARD_UNKNOWN: Code
REWARDS_NOT_A_FUNCTION: Code
REWARDS_SIGNATURE: Code
REWARDS_NO_ANSWER: _REWARDS_NO_ANSWER
REWARDS_FAILED: _REWARDS_FAILED
REWARDS_TESTS: _REWARDS_TESTS
REWARDS_OPTIONS: Code
REWARDS_CODE_TESTS: _REWARDS_CODE_TESTS
REWARDS_NO_NUMBER: _REWARDS_NO_NUMBER
EMBEDDING_NO_SCORE: _EMBEDDING_NO_SCORE
