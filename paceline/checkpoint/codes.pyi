# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _CHECKPOINT_PATH_MISSING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_NO_SNAPSHOT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_FILE_NAME(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_NOT_SHARED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_APART(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_NOT_FETCHED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_HOLDER_DAMAGED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        holder: object,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_STATE_NOT_JSON(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        path: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_DAMAGED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_UNREADABLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_MISPLACED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_MANIFEST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_NEWER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_NOT_FINITE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        kind: object,
        name: object,
        role: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_WRONG_SHAPE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        kind: object,
        name: object,
        role: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_NONE_SOUND(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_CANNOT_AVERAGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        detail: object,
        remedy: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_JSON(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_FOREIGN_FILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_NO_TENSOR(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        kind: object,
        name: object,
        role: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_TENSOR_INCOMPLETE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        missing: object,
        name: object,
        kind: object,
        role: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CHECKPOINT_OTHER_RUN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        detail: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _RESUME_SKIPPED_INCOMPLETE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        checkpoint: object,
        why: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EXPORT_ADAPTER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EXPORT_CARRIED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        count: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EXPORT_DTYPE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EXPORT_NO_BEST(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EXPORT_NO_CONFIG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EXPORT_NO_ROLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        role: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _EXPORT_SHARD_SIZE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CONVERT_NO_WALLS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CONVERT_REFUSED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CONVERT_LEFT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        text: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _OBJECTS_NO_CONDITIONAL_CREATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _OBJECTS_IN_USE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _OBJECTS_OTHER_WRITER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _OBJECTS_UPLOADED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        url: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _OBJECTS_SKIPPED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _OBJECTS_FETCHED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        url: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _OBJECTS_HOUSEKEEPING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        detail: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

CHECKPOINT_DISK_FULL: Code
CHECKPOINT_IO: Code
CHECKPOINT_PERMISSION: Code
CHECKPOINT_READ_ONLY: Code
CHECKPOINT_PATH_MISSING: _CHECKPOINT_PATH_MISSING
CHECKPOINT_SAVE_FAILED: Code
CHECKPOINT_NO_SNAPSHOT: _CHECKPOINT_NO_SNAPSHOT
CHECKPOINT_FILE_NAME: _CHECKPOINT_FILE_NAME
CHECKPOINT_HOUSEKEEPING: Code
CHECKPOINT_NOT_SHARED: _CHECKPOINT_NOT_SHARED
CHECKPOINT_APART: _CHECKPOINT_APART
CHECKPOINT_NOT_FETCHED: _CHECKPOINT_NOT_FETCHED
CHECKPOINT_HOLDER_DAMAGED: _CHECKPOINT_HOLDER_DAMAGED
CHECKPOINT_STATE_NOT_JSON: _CHECKPOINT_STATE_NOT_JSON
CHECKPOINT_DAMAGED: _CHECKPOINT_DAMAGED
CHECKPOINT_UNREADABLE: _CHECKPOINT_UNREADABLE
CHECKPOINT_INCOMPLETE: Code
CHECKPOINT_MISPLACED: _CHECKPOINT_MISPLACED
CHECKPOINT_MANIFEST: _CHECKPOINT_MANIFEST
CHECKPOINT_NEWER: _CHECKPOINT_NEWER
CHECKPOINT_NOT_FINITE: _CHECKPOINT_NOT_FINITE
CHECKPOINT_WRONG_SHAPE: _CHECKPOINT_WRONG_SHAPE
CHECKPOINT_NONE_SOUND: _CHECKPOINT_NONE_SOUND
CHECKPOINT_CANNOT_AVERAGE: _CHECKPOINT_CANNOT_AVERAGE
CHECKPOINT_JSON: _CHECKPOINT_JSON
CHECKPOINT_FOREIGN_FILE: _CHECKPOINT_FOREIGN_FILE
CHECKPOINT_NO_TENSOR: _CHECKPOINT_NO_TENSOR
CHECKPOINT_TENSOR_INCOMPLETE: _CHECKPOINT_TENSOR_INCOMPLETE
CHECKPOINT_OTHER_RUN: _CHECKPOINT_OTHER_RUN
RESUME_CHOSEN: Code
RESUME_FRESH_START: Code
RESUME_NOT_A_CHECKPOINT: Code
RESUME_SKIPPED_INCOMPLETE: _RESUME_SKIPPED_INCOMPLETE
EXPORT_ADAPTER: _EXPORT_ADAPTER
EXPORT_BASE_MODEL: Code
EXPORT_CARRIED: _EXPORT_CARRIED
EXPORT_DESTINATION: Code
EXPORT_DTYPE: _EXPORT_DTYPE
EXPORT_EXPORTER: Code
EXPORT_GGUF: Code
EXPORT_LOAD_CHECK: Code
EXPORT_MODEL_TYPE: Code
EXPORT_NO_BEST: _EXPORT_NO_BEST
EXPORT_NO_CHECKPOINT: Code
EXPORT_NO_CONFIG: _EXPORT_NO_CONFIG
EXPORT_NO_ROLE: _EXPORT_NO_ROLE
EXPORT_NOT_FINITE: Code
EXPORT_SHARD_SIZE: _EXPORT_SHARD_SIZE
EXPORT_TENSORS: Code
PUSH_PLACE: Code
PUSH_TOKEN: Code
PUSH_NOT_EMPTY: Code
PUSH_HUB: Code
CONVERT_INCOMPLETE: Code
CONVERT_MISFIT: Code
CONVERT_NO_WALLS: _CONVERT_NO_WALLS
CONVERT_REFUSED: _CONVERT_REFUSED
CONVERT_UNKNOWN: Code
CONVERT_LEFT: _CONVERT_LEFT
OBJECTS_UNAVAILABLE: Code
OBJECTS_DENIED: Code
OBJECTS_NO_CONDITIONAL_CREATE: _OBJECTS_NO_CONDITIONAL_CREATE
OBJECTS_IN_USE: _OBJECTS_IN_USE
OBJECTS_OTHER_WRITER: _OBJECTS_OTHER_WRITER
OBJECTS_HOLDS_RUN: Code
OBJECTS_DAMAGED: Code
OBJECTS_UPLOADED: _OBJECTS_UPLOADED
OBJECTS_SKIPPED: _OBJECTS_SKIPPED
OBJECTS_NOT_IN_TIME: Code
OBJECTS_FETCHED: _OBJECTS_FETCHED
OBJECTS_HOUSEKEEPING: _OBJECTS_HOUSEKEEPING
