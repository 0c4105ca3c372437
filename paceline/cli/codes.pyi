# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from paceline.core.diagnostics import Code

CLI_DEFECT: Code
CLI_MODE: Code
CLI_FLAG_NOT_KEPT: Code
CLI_TWO_COMMAND_LINES: Code
CLI_OPTION: Code
CLI_SYSTEM: Code
CLI_PAGE_PACKAGES: Code
CLI_SERVE_PACKAGES: Code
CLI_PORT: Code
CLI_UNKNOWN_CODE: Code
CLI_UNKNOWN_VERB: Code
PLAN_SUBJECT: Code
PLAN_ALGORITHM: Code
PLAN_BITS: Code
PLAN_NO_CLOSED_FORM: Code
PLAN_NO_TORCH: Code
LAUNCH_MANY_TIMES: Code
