# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from paceline.core.diagnostics import Code

PLOT_NO_EVENTS: Code
PLOT_WRITE: Code
PLAN_PICTURE: Code
REPORT_WRITE: Code
