"""A plug-in of pytest for ``scripts/mutants.py cover``: the name of the test is Coverage's context.

The tests that passed, with their seconds, and those that failed are written to ``$MUTANTS_RECORD``.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

SECONDS: dict[str, float] = defaultdict(float)
FAILED: set[str] = set()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if (current := coverage.Coverage.current()) is not None:
        current.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS[report.nodeid] += report.duration
    if not report.passed:
        FAILED.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        passed = {test: round(seconds, 3) for test, seconds in SECONDS.items() if test not in FAILED}
        record = {"passed": passed, "failed": sorted(FAILED)}
        Path(os.environ["MUTANTS_RECORD"]).write_text(json.dumps(record, indent=0))
