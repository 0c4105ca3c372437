# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from paceline.core.diagnostics import Code

API_ARGUMENT: Code
API_NOT_IMPORTABLE: Code
API_NO_RUN: Code
API_ROWS: Code
API_RUN_FAILED: Code
API_LISTENER: Code
VERIFY_COMPARE_FAILED: Code
VERIFY_RUN_FAILED: Code
