# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import CodeName, Diagnostic, Severity

class _NODE_MISSING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        address: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_LATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_LOST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_NO_MASTER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_MASTER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        node: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_MASTER_LOOPBACK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_RANK_TWICE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rank: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_OTHER_NNODES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_OTHER_SECRET(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_CLOCK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_VERSION(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_CONFIG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_FILES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_ENVIRONMENT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_CARDS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_CARD_MEMORY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_CARD_XID(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_CARD_SLOWED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        cause: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_CARD_LINK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_INTERFACE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        variable: object,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_NETWORK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_NAME_LOOPBACK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_NAME_WRONG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_NAME_UNKNOWN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        address: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_PORT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        way: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_LARGE_PACKETS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_LINK_SLOW(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_FOLDER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_DISK_FULL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_INODES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_DISK_STUCK(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        seconds: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_FSYNC(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_NOT_SHARED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_LOCKS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_MEMORY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        need: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_ADDRESSES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_PROCESSES(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        ranks: object,
        need: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _NODE_RANKS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

NODE_MISSING: _NODE_MISSING
NODE_LATE: _NODE_LATE
NODE_LOST: _NODE_LOST
NODE_NO_MASTER: _NODE_NO_MASTER
NODE_MASTER: _NODE_MASTER
NODE_MASTER_LOOPBACK: _NODE_MASTER_LOOPBACK
NODE_RANK_TWICE: _NODE_RANK_TWICE
NODE_OTHER_NNODES: _NODE_OTHER_NNODES
NODE_OTHER_SECRET: _NODE_OTHER_SECRET
NODE_CLOCK: _NODE_CLOCK
NODE_VERSION: _NODE_VERSION
NODE_CONFIG: _NODE_CONFIG
NODE_FILES: _NODE_FILES
NODE_ENVIRONMENT: _NODE_ENVIRONMENT
NODE_CARDS: _NODE_CARDS
NODE_CARD_MEMORY: _NODE_CARD_MEMORY
NODE_CARD_XID: _NODE_CARD_XID
NODE_CARD_SLOWED: _NODE_CARD_SLOWED
NODE_CARD_LINK: _NODE_CARD_LINK
NODE_INTERFACE: _NODE_INTERFACE
NODE_NETWORK: _NODE_NETWORK
NODE_NAME_LOOPBACK: _NODE_NAME_LOOPBACK
NODE_NAME_WRONG: _NODE_NAME_WRONG
NODE_NAME_UNKNOWN: _NODE_NAME_UNKNOWN
NODE_PORT: _NODE_PORT
NODE_LARGE_PACKETS: _NODE_LARGE_PACKETS
NODE_LINK_SLOW: _NODE_LINK_SLOW
NODE_FOLDER: _NODE_FOLDER
NODE_DISK_FULL: _NODE_DISK_FULL
NODE_INODES: _NODE_INODES
NODE_DISK_STUCK: _NODE_DISK_STUCK
NODE_FSYNC: _NODE_FSYNC
NODE_NOT_SHARED: _NODE_NOT_SHARED
NODE_LOCKS: _NODE_LOCKS
NODE_MEMORY: _NODE_MEMORY
NODE_ADDRESSES: _NODE_ADDRESSES
NODE_PROCESSES: _NODE_PROCESSES
NODE_RANKS: _NODE_RANKS
