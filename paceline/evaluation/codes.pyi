# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _EVALUATION_LOSS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        wrong: object,
        sums: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EVALUATION_METRIC_FAILED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        share: object,
        outcome: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EVALUATION_NO_EXPECTED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        without: object,
        answered: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EVALUATION_NO_ROOM(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        positions: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EVALUATION_JUDGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        missing: object,
        scores: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

EVALUATION_JOB: Code
EVALUATION_LOSS: _EVALUATION_LOSS
EVALUATION_METRIC: Code
EVALUATION_METRIC_FAILED: _EVALUATION_METRIC_FAILED
EVALUATION_METRIC_PACKAGE: Code
EVALUATION_NO_EXPECTED: _EVALUATION_NO_EXPECTED
EVALUATION_NO_ROOM: _EVALUATION_NO_ROOM
EVALUATION_OUTPUT: Code
EVALUATION_RANK: Code
EVALUATION_JUDGE: _EVALUATION_JUDGE
EVALUATION_LM_EVAL: Code
