# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from paceline.core.diagnostics import Code

CORE_TARGET: Code
CORE_TARGET_ATTR: Code
CORE_TARGET_MODULE: Code
ALGORITHM_UNKNOWN: Code
STRATEGY_UNKNOWN: Code
SEC_TRUST_REMOTE_CODE: Code
