"""Rows that nearly match a format are refused with what makes them match: it does when it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.config.sections.data import Dataset
from paceline.core.errors import DataError
from paceline.core.plugins.tables import ROW_KINDS
from paceline.data.preflight.find_sets import find_sets, look
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import row_kind

ROWS: dict[str, dict[str, Any]] = {
    "documents": {"instruction": "q", "output": "a"},
    "pairs": {"prompt": "q", "chosen": "a", "rejected": "b"},
    "labelled": {"prompt": "q", "completion": "a", "label": True},
    "classified": {"text": "q", "label": 1},
    "prompts": {"problem": "q", "solution": "a"},
}
assert ROWS.keys() == set(ROW_KINDS)
SPELT = [str.title, str.upper, lambda name: f" {name}", lambda name: f"{name} "]


def refused(path: Path, kind: str, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        looked(path, kind)
    return caught.value.diagnostics[0].hint


def looked(path: Path, kind: str, columns: dict[str, str] | None = None) -> Any:
    [found] = find_sets("data.train", (Dataset(path=str(path), columns=columns or {}),))
    return look(found, Reading("auto", row_kind(kind))).shape


@pytest.mark.parametrize("kind", ROWS)
def test_columns_spelt_otherwise_are_named_and_the_line_that_is_told_reads_them(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    for spelt in SPELT:
        row = {spelt(name): value for name, value in ROWS[kind].items()}
        told = refused(path, kind, json.dumps(row) + "\n")
        columns = yaml.safe_load(re.sub(r" \(next to path:\)$", "", told))["columns"]
        assert set(looked(path, kind, columns).columns.values()) == set(row), told


@pytest.mark.parametrize("kind", ROWS)
def test_rows_in_a_list_within_one_object_are_told_the_list(kind: str, tmp_path: Path) -> None:
    told = refused(tmp_path / "rows.json", kind, json.dumps({"version": 1, "data": [ROWS[kind]] * 2}))
    assert "jq -c '.\"data\"[]' rows.json" in told


def test_a_table_without_a_line_of_names_is_told_so(tmp_path: Path) -> None:
    assert "names of the columns" in refused(tmp_path / "t.csv", "documents", "hello you,bye\nmore,words\n")
    assert "name the columns" in refused(tmp_path / "t.csv", "documents", "a,b\nmore,words\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 1\n", "git lfs pull"),
        ('{\n "text": "a"\n}\n{\n "text": "b"\n}\n', "jq -c . rows.jsonl"),
        ('[{"role": "user", "content": "a"}]\n' * 2, '{"messages": […]}'),
    ],
)
def test_a_file_that_is_no_rows_is_told_how_to_become_them(text: str, told: str, tmp_path: Path) -> None:
    assert told in refused(tmp_path / "rows.jsonl", "documents", text)
