# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from paceline.core.diagnostics import Code

ALGORITHM_NOT_AN_ALGORITHM: Code
REWARD_UNKNOWN: Code
REWARDS_NOT_A_FUNCTION: Code
REWARDS_SIGNATURE: Code
REWARDS_NO_ANSWER: Code
REWARDS_FAILED: Code
REWARDS_TESTS: Code
REWARDS_OPTIONS: Code
