# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _GENERATION_NO_CHAT_TEMPLATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _GENERATION_NO_RUN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _GENERATION_RUN_CONFIG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _GENERATION_TOO_LONG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _GENERATION_PORT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_VERSION(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVERS_GONE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_LEFT_OUT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_SERVER_BACK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_WEIGHTS_AGAIN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _ROLLOUT_WEIGHTS_WRONG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

GENERATION_NO_CHAT_TEMPLATE: _GENERATION_NO_CHAT_TEMPLATE
GENERATION_NO_MODEL: Code
GENERATION_NO_RUN: _GENERATION_NO_RUN
GENERATION_OPTIONS: Code
GENERATION_RUN_CONFIG: _GENERATION_RUN_CONFIG
GENERATION_TEMPLATE_COSTLY: Code
GENERATION_TEMPLATE_REFUSED: Code
GENERATION_TOO_LONG: _GENERATION_TOO_LONG
GENERATION_STATEFUL: Code
GENERATION_PORT: _GENERATION_PORT
ROLLOUT_SERVER_UNREACHABLE: Code
ROLLOUT_SERVER_STATUS: Code
ROLLOUT_SERVER_ANSWER: Code
ROLLOUT_SERVER_VERSION: _ROLLOUT_SERVER_VERSION
ROLLOUT_SERVERS_GONE: _ROLLOUT_SERVERS_GONE
ROLLOUT_SERVER_LEFT_OUT: _ROLLOUT_SERVER_LEFT_OUT
ROLLOUT_SERVER_BACK: _ROLLOUT_SERVER_BACK
ROLLOUT_WEIGHTS_AGAIN: _ROLLOUT_WEIGHTS_AGAIN
ROLLOUT_WEIGHTS_WRONG: _ROLLOUT_WEIGHTS_WRONG
