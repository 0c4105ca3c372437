# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _STRATEGY_DATA_PARALLEL_WORLD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_SINGLE_WORLD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_FSDP_WORLD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_FSDP_WRAP_CLASS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        have: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_NOTHING_TO_TRAIN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_OPTIMIZER_SHARDED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_OPTIMIZER_UNSUPPORTED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        why: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_EMPTY_WINDOW(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_PIPELINE_CP(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_PIPELINE_SCHEDULE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_ACCELERATOR(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        type: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_ASYNC_IO(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_BROKEN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        version: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_FLOAT64(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        stage: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_LAYOUT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_MISSING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        install: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_OPTIMIZER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        stage: object,
        splits_why: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_PACKED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_REFUSED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_DEEPSPEED_TRAP(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _STRATEGY_CANNOT_SKIP(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

STRATEGY_DATA_PARALLEL_WORLD: _STRATEGY_DATA_PARALLEL_WORLD
STRATEGY_SINGLE_WORLD: _STRATEGY_SINGLE_WORLD
STRATEGY_FSDP_WORLD: _STRATEGY_FSDP_WORLD
STRATEGY_FSDP_WRAP_CLASS: _STRATEGY_FSDP_WRAP_CLASS
STRATEGY_NOT_A_STRATEGY: Code
STRATEGY_NOTHING_TO_TRAIN: _STRATEGY_NOTHING_TO_TRAIN
STRATEGY_OPTIMIZER_ARGS: Code
STRATEGY_OPTIMIZER_SHARDED: _STRATEGY_OPTIMIZER_SHARDED
STRATEGY_OPTIMIZER_UNSUPPORTED: _STRATEGY_OPTIMIZER_UNSUPPORTED
STRATEGY_EMPTY_WINDOW: _STRATEGY_EMPTY_WINDOW
STRATEGY_PIPELINE_CP: _STRATEGY_PIPELINE_CP
STRATEGY_PIPELINE_SCHEDULE: _STRATEGY_PIPELINE_SCHEDULE
STRATEGY_DEEPSPEED_ACCELERATOR: _STRATEGY_DEEPSPEED_ACCELERATOR
STRATEGY_DEEPSPEED_ASYNC_IO: _STRATEGY_DEEPSPEED_ASYNC_IO
STRATEGY_DEEPSPEED_BROKEN: _STRATEGY_DEEPSPEED_BROKEN
STRATEGY_DEEPSPEED_FLOAT64: _STRATEGY_DEEPSPEED_FLOAT64
STRATEGY_DEEPSPEED_LAYOUT: _STRATEGY_DEEPSPEED_LAYOUT
STRATEGY_DEEPSPEED_MISSING: _STRATEGY_DEEPSPEED_MISSING
STRATEGY_DEEPSPEED_OPTIMIZER: _STRATEGY_DEEPSPEED_OPTIMIZER
STRATEGY_DEEPSPEED_PACKED: _STRATEGY_DEEPSPEED_PACKED
STRATEGY_DEEPSPEED_REFUSED: _STRATEGY_DEEPSPEED_REFUSED
STRATEGY_DEEPSPEED_TRAP: _STRATEGY_DEEPSPEED_TRAP
STRATEGY_CANNOT_SKIP: _STRATEGY_CANNOT_SKIP
CHECKPOINT_MISSING_TENSOR: Code
CHECKPOINT_SHAPE: Code
