# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _CONFIG_EMPTY_FILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CONFIG_OVERRIDE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CONFIG_NOT_A_CONFIG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CONFIG_FOREIGN_AS_CONFIG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        names: object,
        key: object,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _CONFIG_MIGRATED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        path: object,
        detail: object,
        new: object,
        key: object,
        newest: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _LAUNCH_OPTIONS_TAKEN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        parts: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _PREC_FP16_AND_BF16(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SEC_SECRET_VALUE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        path: object,
        names: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _SEC_NO_REMOTE_CODE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        why: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

ZERO_OPTIMIZER_PARAMS: Code
ZERO_UNKNOWN_KEY: Code
ZERO_NVME_PATH: Code
ZERO_NOT_BUILT: Code
ZERO_OPTIMIZER: Code
ZERO_SCHEDULER: Code
ZERO_TUNING_SPACE: Code
ZERO_UNKNOWN_TOPLEVEL: Code
CONFIG_MISSING_FILE: Code
CONFIG_IS_DIRECTORY: Code
CONFIG_UNREADABLE: Code
CONFIG_TOO_LARGE: Code
CONFIG_NOT_UTF8: Code
CONFIG_EMPTY_FILE: _CONFIG_EMPTY_FILE
CONFIG_NOT_A_MAPPING: Code
CONFIG_SEVERAL_DOCUMENTS: Code
CONFIG_YAML_TAB: Code
CONFIG_YAML_SYNTAX: Code
CONFIG_YAML_TAG: Code
CONFIG_YAML_BOMB: Code
CONFIG_YAML_DEPTH: Code
CONFIG_YAML_RECURSION: Code
CONFIG_YAML_ALIAS: Code
CONFIG_YAML_KEY: Code
CONFIG_YAML_MERGE: Code
CONFIG_DUPLICATE_KEY: Code
CONFIG_JSON_SYNTAX: Code
CONFIG_JSON_TEMPLATE: Code
CONFIG_OVERRIDE: _CONFIG_OVERRIDE
CONFIG_VARIABLE: Code
CONFIG_EXTENSION: Code
CONFIG_LOOKALIKE: Code
CONFIG_UNKNOWN_VARIABLE: Code
CONFIG_SECTION: Code
CONFIG_NOT_A_CONFIG: _CONFIG_NOT_A_CONFIG
CONFIG_UNKNOWN_KEY: Code
CONFIG_NO_ITEM: Code
CONFIG_CONFLICT: Code
CONFIG_TYPE: Code
CONFIG_VALUE: Code
CONFIG_TRANSLATED: Code
CONFIG_NO_EFFECT: Code
CONFIG_NOT_GRANTED: Code
CONFIG_NOT_SUPPORTED: Code
CONFIG_DEEPSPEED_BOTH: Code
CONFIG_LORA_OFF: Code
CONFIG_FOREIGN_MISSING: Code
CONFIG_FOREIGN_AS_CONFIG: _CONFIG_FOREIGN_AS_CONFIG
CONFIG_OTHER_PROGRAM: Code
CONFIG_FOREIGN_NOT_TAKEN: Code
CONFIG_FILE_VALUE_OVERRIDDEN: Code
CONFIG_EXTENDS: Code
CONFIG_SCHEMA_VERSION: Code
CONFIG_MIGRATED: _CONFIG_MIGRATED
CONFIG_EXPORT: Code
CONFIG_IMPORT_SYSTEM: Code
CONFIG_IMPORT_COMMAND: Code
LAUNCH_OPTION_WINS: Code
LAUNCH_OPTION_OVERRIDDEN: Code
LAUNCH_OPTIONS_TAKEN: _LAUNCH_OPTIONS_TAKEN
LAUNCH_NO_EFFECT: Code
ACCELERATE_UNKNOWN_KEY: Code
ACCELERATE_NOT_BUILT: Code
FSDP_OFFLOAD: Code
FSDP_VALUE: Code
FSDP_NOT_BUILT: Code
FSDP_UNKNOWN_KEY: Code
TRAIN_OPTIM_ARGS: Code
PREC_FP16_AND_BF16: _PREC_FP16_AND_BF16
PREC_AMP_ZERO: Code
PEFT_QUANT_FULL: Code
SEC_SECRET_VALUE: _SEC_SECRET_VALUE
SEC_NO_REMOTE_CODE: _SEC_NO_REMOTE_CODE
SEC_SECRET_ON_CLI: Code
