"""The seconds of each test file: recorded by ``make test-record``, read to run the longest files first.

``pytest-xdist`` hands files to workers in the order of collection; a long file that starts last keeps one
worker busy while the others wait.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("seconds.json")


def longest_first(items: list[pytest.Item], seconds: dict[str, float]) -> list[pytest.Item]:
    """Return the tests in the order of their files' seconds, longest first; those of a file stay in order.

    A file that is not in the record comes first: how long it takes is not known.
    """

    def key(item: pytest.Item) -> float:
        return -seconds.get(item.path.relative_to(ROOT).as_posix(), float("inf"))

    return sorted(items, key=key)


def recorded_seconds() -> dict[str, float]:
    return json.loads(RECORD.read_text()) if RECORD.is_file() else {}


class Recorder:
    """Add up what each file's tests take (set-up, call, tear-down; seconds); write ``RECORD`` at the end.

    Files that did not run keep their value; files that are gone lose it.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        seconds = {**recorded_seconds(), **self._seconds}
        kept = {file: round(seconds[file], 1) for file in sorted(seconds) if (ROOT / file).is_file()}
        RECORD.write_text(json.dumps(kept, indent=0) + "\n")
