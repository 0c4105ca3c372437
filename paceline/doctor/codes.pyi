# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from paceline.core.diagnostics import Code

DOCTOR_COMPILER: Code
DOCTOR_FILES: Code
DOCTOR_HEADERS: Code
DOCTOR_MEMLOCK: Code
DOCTOR_NO_TORCH: Code
DOCTOR_MISMATCH: Code
DOCTOR_NO_FLIGHTS: Code
DOCTOR_P2P: Code
DOCTOR_SHM: Code
DOCTOR_STUCK: Code
