"""What each diagnostic code means and what to do about it: the text of ``paceline explain CODE``.

One table a subject, one line a code, in real sentences. The codes of the config and its rules stand in ``config/codes.py``.
``tests/architecture/test_codes.py`` holds that every code that can be raised has a line, and that every line has a code.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.codes import beforehand, checkpoints, data, launch, models, plan, program, strategies, training

TABLES: tuple[Mapping[str, str], ...] = (
    program.CODES,
    beforehand.CODES,
    data.CODES,
    plan.CODES,
    launch.CODES,
    models.CODES,
    strategies.CODES,
    training.CODES,
    checkpoints.CODES,
)
EXPLANATIONS: Mapping[str, str] = {code: text for table in TABLES for code, text in table.items()}
