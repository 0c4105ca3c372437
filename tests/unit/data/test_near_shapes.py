"""Rows that nearly match a format are refused with what makes them match: it does when it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from data_fixtures import make_tokenizer

from paceline.config.schema import Config
from paceline.config.sections.data import Dataset
from paceline.core.errors import DataError
from paceline.core.plugins.tables import ROW_KINDS
from paceline.data.preflight.check_sets import look_at_tokenizer
from paceline.data.preflight.find_sets import find_sets, read_head
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import row_kind
from paceline.plan.model.files.folder_check import check_adapter_folder, check_model_folder

ROWS: dict[str, dict[str, Any]] = {
    "documents": {"instruction": "q", "output": "a"},
    "pairs": {"prompt": "q", "chosen": "a", "rejected": "b"},
    "labelled": {"prompt": "q", "completion": "a", "label": True},
    "classified": {"text": "q", "label": 1},
    "retrieval": {"query": "q", "positive": "d"},
    "ranked": {"query": "q", "positive": "d", "negative": "e"},
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
    return read_head(found, Reading("auto", row_kind(kind))).shape


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
@pytest.mark.parametrize("lines", [1, 3])
def test_rows_in_a_list_within_an_object_are_told_the_list(kind: str, lines: int, tmp_path: Path) -> None:
    text = json.dumps({"version": 1, "data": [ROWS[kind]] * 2}) + "\n"
    told = refused(tmp_path / "rows.jsonl", kind, text * lines)
    assert "jq -c '.\"data\"[]' rows.jsonl" in told


def test_a_table_without_a_line_of_names_is_told_so(tmp_path: Path) -> None:
    assert "names of the columns" in refused(tmp_path / "t.csv", "documents", "hello you,bye\nmore,words\n")
    assert "name the columns" in refused(tmp_path / "t.csv", "documents", "a,b\nmore,words\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{\n "text": "a"\n}\n{\n "text": "b"\n}\n', "jq -c . rows.jsonl"),
        ('[{"role": "user", "content": "a"}]\n' * 2, '{"messages": […]}'),
    ],
)
def test_a_file_that_is_no_rows_is_told_how_to_become_them(text: str, told: str, tmp_path: Path) -> None:
    assert told in refused(tmp_path / "rows.jsonl", "documents", text)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{\n "text": "a"\n}\n{\n "text": "b"\n}\n', "jq -c . a.json"),
        ('{"text": "a",\n "more": [1,\n 2]}\n\n{"text": "b"\n}', "jq -c . a.json"),
        ('{\n "text": "a"\n},\n{\n "text": "b"\n}\n', "write [ before"),
    ],
)
def test_objects_over_lines_are_told_how_to_become_rows(
    text: str, told: str, name: str, tmp_path: Path
) -> None:
    assert told in refused(tmp_path / name, "documents", text)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv", "txt", "parquet", "arrow", "jsonl.gz"])
def test_a_pointer_of_git_lfs_is_no_rows(ending: str, tmp_path: Path) -> None:
    assert "git lfs pull" in refused(tmp_path / f"rows.{ending}", "documents", POINTER)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prompt,completion,prompt\na,b,c\n", "another name"),
        ('prompt,completion\n"he said "hi" there",b\n', "write it twice"),
        ('prompt,completion\na,"b "c", d"\n', "write it twice"),
        ('prompt,completion\na,"b\nc,d\n', "end the value with a quote"),
    ],
)
def test_what_is_wrong_in_a_table_is_told(text: str, told: str, tmp_path: Path) -> None:
    assert told in refused(tmp_path / "t.csv", "documents", text)
    assert told in refused(tmp_path / "t.tsv", "documents", text.replace(",", "\t"))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_pointers_of_git_lfs_are_told_in_the_place_of_a_models_files(name: str, tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "m", chat_template=None)
    (folder / "config.json").write_text("{}")
    (folder / name).write_text(POINTER)
    model = Config.from_json({"model": {"name_or_path": str(folder)}}).model
    looks = (
        check_model_folder(str(folder), "model.name_or_path"),
        check_adapter_folder(str(folder), "model.name_or_path"),
        list(look_at_tokenizer(model, frozenset())),
    )
    for found in looks:
        assert [(d.code, name in d.found) for d in found] == [("core.lfs_pointer", True)]


@pytest.mark.parametrize("kind", ROWS)
def test_a_slip_under_columns_is_told_the_line_that_reads_the_rows(kind: str, tmp_path: Path) -> None:
    """On either side; also where the other names are right."""
    known = {"documents": "prompt completion", "prompts": "prompt answer"}.get(kind, " ".join(ROWS[kind]))
    row = {f"my_{name}": value for name, value in zip(known.split(), ROWS[kind].values(), strict=True)}
    right = {name.removeprefix("my_"): name for name in row}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    for name, column in right.items():
        for wrong in ({name: column[:-2] + column[-1]}, {name[:-2] + name[-1]: column}):
            written = {**{n: c for n, c in right.items() if n != name}, **wrong}
            with pytest.raises(DataError) as error:
                looked(path, kind, written)
            told = error.value.diagnostics[0].hint
            if kind != "documents":
                assert looked(path, kind, yaml.safe_load(told.partition(" (next")[0])["columns"])
            assert f"'{name}'" in told or f"{name}: {column}" in told


@pytest.mark.parametrize("kind", sorted(set(ROW_KINDS) - {"classified"}))
@pytest.mark.parametrize(("role", "text", "user"), [("from", "value", "human"), ("role", "content", "user")])
def test_a_file_of_turns_is_told_to_write_conversations(
    role: str, text: str, user: str, kind: str, tmp_path: Path
) -> None:
    turns = [{role: user, text: "q"}, {role: "assistant", text: "a"}]
    path = tmp_path / "rows.json"
    told = refused(path, kind, json.dumps(turns))
    column = "conversations" if role == "from" else "messages"
    assert told == f'write a conversation a row: {{"{column}": [{{"{role}": …, "{text}": …}}, …]}}'
    for columns in ({"prompt": role, "completion": text}, {"prompt": role}):
        with pytest.raises(DataError, match="each row is one turn"):
            looked(path, kind, columns)


def test_turns_may_be_texts_and_a_role_a_class(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"from": "human", "value": "q"}\n')
    assert looked(path, "documents", {"text": "value"}).format == "text"
    assert looked(path, "classified", {"text": "value", "label": "from"}).columns["label"] == "from"
