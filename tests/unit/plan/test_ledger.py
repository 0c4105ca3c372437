"""The ledger: lines that last, corrections within bounds, a table that reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.plan.cost.measured_runs import KEPT, LedgerEntry, append, corrections, read, table

ONE = LedgerEntry("2026-01-01T10:00:00", "8 × H100", "llama-3-8b", "fsdp", 8, 40e9, 44e9, 1000.0, 800.0)


def test_entries_come_back_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a" / "ledger.jsonl"
    assert read(path) == []
    append(path, ONE)
    path.write_text(path.read_text() + '{"time": "torn')
    append(path, replace(ONE, strategy="ddp"))
    assert [e.strategy for e in read(path)] == ["fsdp", "ddp"]


def test_the_file_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    append(path, ONE)
    path.write_text(path.read_text() * (KEPT + 50))
    append(path, replace(ONE, strategy="newest"))
    assert len(read(path)) == KEPT and read(path)[-1].strategy == "newest"


def test_corrections_are_medians_of_that_machine_and_bounded() -> None:
    entries = [
        ONE,
        replace(ONE, measured_bytes=48e9),
        replace(ONE, measured_bytes=400e9),
        replace(ONE, machine="other", measured_bytes=4e9),
    ]
    assert corrections(entries, "8 × H100") == (pytest.approx(1.2), pytest.approx(1.25))
    assert corrections(entries, "other")[0] == 0.5
    assert corrections([], "8 × H100") == (1.0, 1.0)
    assert corrections([replace(ONE, predicted_bytes=None, measured_speed=None)], "8 × H100") == (1.0, 1.0)


def test_the_table_tells_both_numbers_and_what_follows() -> None:
    told = table([ONE])
    assert "37.3 → 41.0" in told and "1,000 → 800.0" in told and "memory × 1.10, time × 1.25" in told
    assert max(map(len, told.splitlines())) <= 100
    assert "empty" in table([])
