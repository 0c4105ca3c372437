# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from paceline.core.diagnostics import Code

BENCH_OPTIONS: Code
BENCH_RUN_FAILED: Code
DEMO_NOT_EMPTY: Code
DEMO_NOT_WRITABLE: Code
DEMO_OPTIONS: Code
DEMO_STEP_FAILED: Code
