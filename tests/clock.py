"""The seconds of each test file: recorded by ``make test-record``, read to run the longest files first.

``pytest-xdist`` hands files to workers in the order of collection; a long file that starts last keeps one
worker busy while the others wait. Files of ``TOGETHER`` go to one worker as if they were one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("seconds.json")
TOGETHER = "tests/architecture"  # which read every source of the package, once


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Hand files to workers; those that share what they read are handed out together."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])


def unit_of(file: str) -> str:
    """Return what is handed to a worker whole: a file, or the files of ``TOGETHER``."""
    return TOGETHER if file.startswith(f"{TOGETHER}/") else file


def longest_first(items: list[pytest.Item], seconds: dict[str, float]) -> list[pytest.Item]:
    """Return the tests in the order of their files' seconds, longest first; those of a file stay in order.

    A file that is not in the record comes first: how long it takes is not known.
    """
    files = {item.path: item.path.relative_to(ROOT).as_posix() for item in items}
    units: dict[str, float] = defaultdict(float)
    for file in files.values():
        units[unit_of(file)] += seconds.get(file, float("inf"))

    def key(item: pytest.Item) -> tuple[float, str]:
        unit = unit_of(files[item.path])
        return -units[unit], unit

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
