# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _RUNTIME_BACKEND(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        others: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_DEVICE_SHARED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        ranks: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_DOCSTRINGS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_RANK_DIED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_COLLECTIVE_STUCK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        waits: object,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_GROUP(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        master_addr: object,
        master_port: object,
        rank: object,
        backend: object,
        variable: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_JSON_LIMIT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        size: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_PORT_IN_USE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        master_port: object,
        meeting_host: object,
        nodes: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_RANK_SILENT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        shown: object,
        seconds: object,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_STORE_FORGED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_STORE_LOST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        host: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_STORE_OPEN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        host: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RUNTIME_STORE_SECRET(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

RUNTIME_BACKEND: _RUNTIME_BACKEND
RUNTIME_DEVICE: Code
RUNTIME_DEVICE_SHARED: _RUNTIME_DEVICE_SHARED
RUNTIME_DOCSTRINGS: _RUNTIME_DOCSTRINGS
RUNTIME_FIRST_REDUCE: Code
RUNTIME_LINK_SLOW: Code
RUNTIME_RANKS_DIFFER: Code
RUNTIME_RANKS_UNEQUAL: Code
RUNTIME_RANK_DIED: _RUNTIME_RANK_DIED
RUNTIME_NO_LINE: Code
RUNTIME_RANK_LATE: Code
RUNTIME_COLLECTIVE_STUCK: _RUNTIME_COLLECTIVE_STUCK
RUNTIME_ENV_LOCAL_RANK: Code
RUNTIME_ENV_MISSING: Code
RUNTIME_ENV_NUMBER: Code
RUNTIME_ENV_PORT: Code
RUNTIME_ENV_RANK: Code
RUNTIME_ENV_TWO_LAUNCHERS: Code
RUNTIME_ENV_UNEVEN: Code
RUNTIME_GROUP: _RUNTIME_GROUP
RUNTIME_JSON_LIMIT: _RUNTIME_JSON_LIMIT
RUNTIME_PORT_IN_USE: _RUNTIME_PORT_IN_USE
RUNTIME_RANKS_MISSING: Code
RUNTIME_RENDEZVOUS: Code
RUNTIME_RANK_BACK: Code
RUNTIME_RANK_QUIET: Code
RUNTIME_RANK_SILENT: _RUNTIME_RANK_SILENT
RUNTIME_RANK_SLOW: Code
RUNTIME_STORE_FORGED: _RUNTIME_STORE_FORGED
RUNTIME_STORE_LOST: _RUNTIME_STORE_LOST
RUNTIME_STORE_OPEN: _RUNTIME_STORE_OPEN
RUNTIME_STORE_SILENT: Code
RUNTIME_STORE_SECRET: _RUNTIME_STORE_SECRET
