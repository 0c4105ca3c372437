"""Sampled answers in words: a table while texts are short, blocks when they are long."""

from __future__ import annotations

from typing import Any

from paceline.runlog.events import Samples
from paceline.runlog.lines import samples_lines


def row(prompt: str = "2 + 2?", **more: Any) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "completion": "4",
        "answer": "4",
        "reward": 1.0,
        "reward/exact_match": 1.0,
        **more,
    }


def test_short_answers_are_a_table_with_aligned_columns() -> None:
    lines = samples_lines(
        Samples(7, [row(), row("a longer question", completion="five", reward=None)])
    ).splitlines()
    assert lines[0] == "samples of step 7"
    assert lines[1].split() == [
        "prompt",
        "completion",
        "expected",
        "reward",
    ], "one function is the whole reward"
    column = lines[1].index("expected")
    assert [line[column:].split()[0] for line in lines[3:]] == ["4", "4"] and lines[4].endswith("skipped")


def test_each_function_has_a_column_where_there_are_several() -> None:
    lines = samples_lines(Samples(1, [row(**{"reward/length": 0.25})])).splitlines()
    assert lines[1].split()[3:] == ["reward", "exact_match", "length"] and lines[3].split()[-3:] == [
        "1",
        "1",
        "0.25",
    ]


def test_long_answers_are_blocks_and_are_cut() -> None:
    lines = samples_lines(Samples(1, [row("word " * 100, **{"reward/length": 0.25})])).splitlines()
    assert lines[1].startswith("  prompt      word word") and lines[1].endswith("…") and len(lines[1]) < 180
    assert lines[-1] == "  reward      1  (exact_match 1, length 0.25)"
    assert samples_lines(Samples(1, [])).splitlines()[0] == "samples of step 1"
