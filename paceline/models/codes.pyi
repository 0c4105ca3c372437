# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _MODELS_UNTIED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_LOST_WEIGHTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        refused: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_ROPE_BY_LENGTH(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_NO_MODEL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_NOT_CAUSAL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_NOT_FILLED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_TEACHER_HEAD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_VOCAB_TOO_LARGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        need: object,
        have: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_NO_RECOMPUTE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_NOTHING_TO_QUANTISE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_ATTENTION_NOT_PACKABLE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_POSITION_BIAS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_ADAPTER_NEW_ROWS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_ADAPTER_WEIGHTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_TOO_FEW_LAYERS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        num_layers: object,
        count: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_NO_ROUTER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _MODELS_ROUTER_LOGITS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

MODELS_BAD_CONFIG: Code
MODELS_CANNOT_LOAD: Code
MODELS_MISSING_WEIGHTS: Code
MODELS_UNTIED: _MODELS_UNTIED
MODELS_LOST_WEIGHTS: _MODELS_LOST_WEIGHTS
MODELS_ROPE_BY_LENGTH: _MODELS_ROPE_BY_LENGTH
MODELS_NO_MODEL: _MODELS_NO_MODEL
MODELS_NOT_CAUSAL: _MODELS_NOT_CAUSAL
MODELS_NOT_FILLED: _MODELS_NOT_FILLED
MODELS_NO_SCALAR_HEAD: Code
MODELS_TEACHER_HEAD: _MODELS_TEACHER_HEAD
MODELS_VOCAB_TOO_LARGE: _MODELS_VOCAB_TOO_LARGE
MODELS_NO_RECOMPUTE: _MODELS_NO_RECOMPUTE
MODELS_NOTHING_TO_QUANTISE: _MODELS_NOTHING_TO_QUANTISE
MODELS_ATTENTION_NOT_PACKABLE: _MODELS_ATTENTION_NOT_PACKABLE
MODELS_POSITION_BIAS: _MODELS_POSITION_BIAS
MODELS_ADAPTER_MODULES_TO_SAVE: Code
MODELS_ADAPTER_NEW_ROWS: _MODELS_ADAPTER_NEW_ROWS
MODELS_ADAPTER_TARGET: Code
MODELS_ADAPTER_TARGETS: Code
MODELS_ADAPTER_WEIGHTS: _MODELS_ADAPTER_WEIGHTS
MODELS_CP_HEADS: Code
MODELS_CP_PADDED: Code
MODELS_TOO_FEW_LAYERS: _MODELS_TOO_FEW_LAYERS
MODELS_SP_FINAL_NORM: Code
MODELS_NO_ROUTER: _MODELS_NO_ROUTER
MODELS_ROUTER_LOGITS: _MODELS_ROUTER_LOGITS
MODELS_SP_PADDED: Code
MODELS_TP_HEADS: Code
MODELS_TP_NOT_SHARDED: Code
MODELS_TP_PLAN_INCOMPLETE: Code
MODELS_TP_VOCABULARY: Code
MODELS_TP_WIDTH: Code
