"""The version of rows is raised by hand: code that makes rows does not change unseen."""

from __future__ import annotations

from collections import Counter

import row_sources

RAISE = """
You changed code that makes rows of data: {changed}.
If the same data still give the same rows, tokens and labels, record it:
    python tests/architecture/row_sources.py
If not, raise ROWS_VERSION in paceline/data/prepare/fingerprint.py first: prepared sets are then made anew,
and resumed runs say that their data cannot be compared.
"""


SOURCE = """import a

if a:
    from a import b
X = {"x": 1}


def read(row):
    \"\"\"Read.\"\"\"
    return row[f"{X}"]  # a row
"""
MOVED = """from b import c

if a:
    from b import b


def read(row):
    return row[f"{X}"]


X = {"x": 1}
"""


def changed(recorded: list[str], now: list[str]) -> list[str]:
    """Names of what one list has and the other has not, so often."""
    apart = Counter(recorded)
    apart.subtract(now)
    return sorted({line.partition(" ")[0] for line, times in apart.items() if times})


def test_changed_sources_of_rows_raise_the_version_or_are_recorded_as_the_same() -> None:
    recorded = row_sources.RECORDED.read_text(encoding="utf-8").splitlines()
    assert not (apart := changed(recorded, row_sources.sources())), RAISE.format(changed=", ".join(apart))


def test_what_makes_rows_is_found_wherever_it_is() -> None:
    found = {name.removeprefix("paceline.data.").rpartition(".")[2] for name in row_sources.modules()}
    assert len(found) > 25 and all(file.is_file() for file in row_sources.modules().values())
    assert sum(".jinja " in line for line in row_sources.sources()) >= 4


def test_moved_code_is_the_same_and_changed_code_is_not() -> None:
    lines = sorted(row_sources.statements(SOURCE))
    assert lines == sorted(row_sources.statements(MOVED)) and len(lines) == 3
    for old, new, name in (("row[", "rows[", "read"), ("1", "2", "X"), ('"x"', '"y"', "X")):
        assert changed(lines, [*row_sources.statements(MOVED.replace(old, new))]) == [name]
    assert changed(lines, lines[:1]) and changed(lines, [*lines, "z 0"]) == ["z"]
