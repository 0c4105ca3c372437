# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from collections.abc import Mapping

from paceline.core.diagnostics import Code, CodeName, Diagnostic, Severity

class _MODEL_NOT_FOUND(CodeName):
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

class _DATA_SYSTEM_FILE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_IMAGE_CHANGED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_IMAGE_FAMILY(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_IMAGE_PACKAGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_IMAGE_TOKEN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_ONE_LABEL(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_TEXT_HAS_NO_ANSWERS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_COLUMN_MISSING(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        missing: object,
        requested: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_COLUMN_UNKNOWN(CodeName):
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

class _DATA_NOT_WRITTEN(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rows: object,
        listed: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_UNOPENED_ANSWER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        header: object,
        loss: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_SPECIAL_IN_ANSWER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_FIELDS_UNREAD(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        listed: object,
        more: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_ANSWERS_IN_A_ROW(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        rows: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_DISGUISED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        suffix: object,
        name: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_EMPTY_FOLDER(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        readable: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_FORMAT_LABELLED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_FORMAT_PAIRS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_FORMAT_PREFERENCE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_HUB(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_MAX_ROWS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        max_rows: object,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_NOT_A_DATASET(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_TWO_COLUMNS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        name: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_NOT_ARROW(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_NOT_PARQUET(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_ROW_TOO_LARGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_UNKNOWN_SUFFIX(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        suffixes: object,
        readable: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_TEMPLATE_OPTION(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        idle: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_NO_CHAT_TEMPLATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        others: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_PLAIN_TEMPLATE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_TOKENIZER_ENDS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        key: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_NO_OFFSETS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_DOCUMENT_TOO_LONG(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        seq_len: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_MAX_POSITIONS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        max_positions: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_EVAL_OVERLAP(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        count: object,
        eval_keys: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_CACHE_REBUILT(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_IMAGE_EXISTS(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_IMAGE_RENEWED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_CACHE_DAMAGED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_WORKER_DIED(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

class _DATA_TOKEN_RANGE(CodeName):
    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        embedding_rows: object,
        severity: Severity = ...,
        evidence: Mapping[str, object] | None = None,
    ) -> Diagnostic: ...

MODEL_NOT_FOUND: _MODEL_NOT_FOUND
DATA_BAD_JSON: Code
DATA_BAD_CSV: Code
DATA_CONVERTER: Code
DATA_CONVERTED_AWAY: Code
DATA_OWN_ROWS: Code
DATA_SYSTEM_FILE: _DATA_SYSTEM_FILE
DATA_NOT_AN_OBJECT: Code
DATA_MISSING_COLUMN: Code
DATA_NOT_TEXT: Code
DATA_BAD_MESSAGES: Code
DATA_UNKNOWN_ROLE: Code
DATA_NOT_FINITE: Code
DATA_TOOLS: Code
DATA_BAD_TOOLS: Code
DATA_TOOL_CALLS: Code
DATA_BAD_TOOL_CALL: Code
DATA_REASONING: Code
DATA_DOCUMENTS: Code
DATA_TURN_LEFT_OUT: Code
DATA_NO_SUCH_ROW: Code
DATA_TURN_WEIGHT: Code
DATA_IMAGES: Code
DATA_IMAGE_COUNT: Code
DATA_IMAGE_MISSING: Code
DATA_IMAGE_OUTSIDE: Code
DATA_IMAGE_URL: Code
DATA_IMAGE_DAMAGED: Code
DATA_IMAGE_BOMB: Code
DATA_IMAGE_KIND: Code
DATA_IMAGE_SHAPE: Code
DATA_IMAGE_MARK: Code
DATA_IMAGE_CUT: Code
DATA_IMAGE_CHANGED: _DATA_IMAGE_CHANGED
DATA_IMAGE_FAMILY: _DATA_IMAGE_FAMILY
DATA_IMAGE_PACKAGE: _DATA_IMAGE_PACKAGE
DATA_IMAGE_TOKEN: _DATA_IMAGE_TOKEN
DATA_EMPTY: Code
DATA_NO_ANSWER: Code
DATA_SAME_ANSWERS: Code
DATA_NO_CLASS: Code
DATA_BAD_GRADE: Code
DATA_BAD_MARGIN: Code
DATA_TEMPLATE_REFUSED: Code
DATA_TEMPLATE_COSTLY: Code
DATA_TEMPLATE_NOT_INCREMENTAL: Code
DATA_ONE_LABEL: _DATA_ONE_LABEL
DATA_NO_LABELS: Code
DATA_TEXT_HAS_NO_ANSWERS: _DATA_TEXT_HAS_NO_ANSWERS
DATA_TOO_LONG: Code
DATA_PROMPT_TOO_LONG: Code
DATA_ANSWER_CUT_OFF: Code
DATA_BAD_INPUT_FILE: Code
DATA_CANNOT_SPLIT: Code
DATA_COLUMN_MISSING: _DATA_COLUMN_MISSING
DATA_COLUMN_UNKNOWN: _DATA_COLUMN_UNKNOWN
DATA_NOT_WRITTEN: _DATA_NOT_WRITTEN
DATA_UNOPENED_ANSWER: _DATA_UNOPENED_ANSWER
DATA_SPECIAL_IN_ANSWER: _DATA_SPECIAL_IN_ANSWER
DATA_UNKNOWN_FIELD: Code
DATA_FIELDS_UNREAD: _DATA_FIELDS_UNREAD
DATA_ANSWERS_IN_A_ROW: _DATA_ANSWERS_IN_A_ROW
DATA_DISGUISED: _DATA_DISGUISED
DATA_EMPTY_FOLDER: _DATA_EMPTY_FOLDER
DATA_CARD: Code
DATA_CONFIG_NAME: Code
DATA_FILES_UNCLEAR: Code
DATA_FILES_LEFT_OUT: Code
DATA_FORMAT: Code
DATA_FORMAT_AMBIGUOUS: Code
DATA_BAD_LABEL: Code
DATA_FORMAT_LABELLED: _DATA_FORMAT_LABELLED
DATA_FORMAT_PAIRS: _DATA_FORMAT_PAIRS
DATA_FORMAT_CLASSES: Code
DATA_FORMAT_RETRIEVAL: Code
DATA_FORMAT_PREFERENCE: _DATA_FORMAT_PREFERENCE
DATA_FORMAT_PROMPTS: Code
DATA_FORMAT_UNKNOWN: Code
DATA_HUB: _DATA_HUB
DATA_MAX_ROWS: _DATA_MAX_ROWS
DATA_MIXTURE: Code
DATA_NOT_A_DATASET: _DATA_NOT_A_DATASET
DATA_NOT_A_LIST: Code
DATA_NOT_CSV: Code
DATA_TWO_COLUMNS: _DATA_TWO_COLUMNS
DATA_NOT_JSON: Code
DATA_NOT_ARROW: _DATA_NOT_ARROW
DATA_NOT_PARQUET: _DATA_NOT_PARQUET
DATA_NOT_UTF8: Code
DATA_ROW_TOO_LARGE: _DATA_ROW_TOO_LARGE
DATA_SPLIT_MISSING: Code
DATA_UNKNOWN_SUFFIX: _DATA_UNKNOWN_SUFFIX
DATA_UNREADABLE: Code
DATA_BAD_CHAT_TEMPLATE: Code
DATA_TEMPLATE_OPTION: _DATA_TEMPLATE_OPTION
DATA_NO_CHAT_TEMPLATE: _DATA_NO_CHAT_TEMPLATE
DATA_PLAIN_TEMPLATE: _DATA_PLAIN_TEMPLATE
DATA_TEMPLATE_TOKEN: Code
DATA_NO_EOS: Code
DATA_TOKENIZER_ENDS: _DATA_TOKENIZER_ENDS
DATA_NO_OFFSETS: _DATA_NO_OFFSETS
DATA_NO_TOKENIZER: Code
DATA_BAD_TOKENIZER: Code
DATA_NO_USABLE_ROWS: Code
DATA_DOCUMENT_TOO_LONG: _DATA_DOCUMENT_TOO_LONG
DATA_MAX_POSITIONS: _DATA_MAX_POSITIONS
DATA_EVAL_OVERLAP: _DATA_EVAL_OVERLAP
DATA_TOO_FEW_ROWS: Code
DATA_CACHE_REBUILT: _DATA_CACHE_REBUILT
DATA_IMAGE_EXISTS: _DATA_IMAGE_EXISTS
DATA_IMAGE_RENEWED: _DATA_IMAGE_RENEWED
DATA_CACHE_DAMAGED: _DATA_CACHE_DAMAGED
DATA_WORKER_DIED: _DATA_WORKER_DIED
DATA_TOKEN_RANGE: _DATA_TOKEN_RANGE
