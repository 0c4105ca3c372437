"""Every kind of file gives the same rows; what cannot be read is named with file and line."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path
from typing import Literal

import pytest
from published_folders import PACKS, TYPES

from paceline.core.errors import DataError
from paceline.data.rows.values import Row
from paceline.data.sources.locate import locate
from paceline.data.sources.readers import RawRow, read_rows

ROWS = [{"prompt": f'Q{i},\n"quoted" é', "completion": f"A{i}"} for i in range(5)]


def rows_of(path: Path | str, split: str = "train") -> list[RawRow]:
    return list(read_rows(locate(str(path), split), split))


def written(folder: Path, name: str) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / name
    if name.startswith("kind"):
        data = TYPES[path.suffixes[0]](ROWS)
        path.write_bytes(PACKS[path.suffix](data) if path.suffix in PACKS else data)
    elif name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif name.endswith(".csv"):
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, ["prompt", "completion"])
            writer.writeheader()
            writer.writerows(ROWS)
    elif name in ("lines.jsonl", "lines_in_truth.json"):
        path.write_text("\n".join(json.dumps(r) for r in ROWS) + "\n\n", "utf-8")
    elif name == "bom.jsonl":
        path.write_text("\n".join(json.dumps(r) for r in ROWS), "utf-8-sig")
    else:
        path.write_text(
            json.dumps(ROWS, indent=2 if name == "indented.json" else None, ensure_ascii=False), "utf-8"
        )
    return path


@pytest.mark.parametrize(
    "name",
    [
        "a.json",
        "indented.json",
        "list.jsonl",
        "lines.jsonl",
        "lines_in_truth.json",
        "bom.jsonl",
        "a.parquet",
        "a.csv",
        "kind.tsv",
        "kind.arrow",
        "kind.jsonl.gz",
        "kind.json.zst",
        "kind.csv.xz",
        "kind.tsv.bz2",
    ],
)
def test_all_kinds_of_files_give_the_same_rows(tmp_path: Path, name: str) -> None:
    assert [row.value for row in rows_of(written(tmp_path, name))] == ROWS


def test_a_saved_dataset_and_its_splits(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=data.select([0]), test=data).save_to_disk(str(tmp_path / "dict"))
    assert [row.value for row in rows_of(tmp_path / "one")] == ROWS
    assert [row.value for row in rows_of(tmp_path / "dict", "test")] == ROWS
    with pytest.raises(DataError, match=r"data\.split_missing.*\n.*train, test"):
        rows_of(tmp_path / "dict", "dev")


def test_places_are_file_and_line(tmp_path: Path) -> None:
    lines = rows_of(written(tmp_path, "lines.jsonl"))
    assert [row.where for row in lines] == [f"{tmp_path}/lines.jsonl:{n}" for n in range(1, 6)]
    indented = rows_of(written(tmp_path, "indented.json"))
    assert [row.where.rpartition(":")[2] for row in indented] == ["2", "6", "10", "14", "18"]


def test_objects_of_one_line_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}, {"a": 2},\n{"a": 3}]')
    assert [row.where.rpartition("/")[2] for row in rows_of(tmp_path / "a.json")] == [
        "a.json:1",
        "a.json:1 (row 2)",
        "a.json:2",
    ]


@pytest.mark.parametrize("pack", PACKS)
def test_compressed_files_cut_short_are_damaged(pack: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"kind.jsonl{pack}")
    for content in (path.read_bytes()[:-9], b"{}" * 90):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"data\.unreadable.*damaged"):
            rows_of(path)


@pytest.mark.parametrize("split", ["validation", "train_sft", "train[60%:70%]", "train[:4]"])
def test_a_file_has_the_split_train_alone(split: str, tmp_path: Path) -> None:
    """``datasets`` reads a slice as one, and knows no other split; all rows were read here."""
    import datasets

    path = written(tmp_path, "lines.jsonl")
    assert len(rows_of(path, "train")) == len(
        datasets.load_dataset("json", data_files=str(path), split="train")
    )
    with pytest.raises(DataError, match=r"data\.split_missing(.|\n)*remove split:"):
        rows_of(path, split)


@pytest.mark.parametrize("encoding", ["utf-16", "gbk", "cp1252"])
def test_the_remedy_for_another_encoding_works(encoding: str, tmp_path: Path) -> None:
    """iconv is the judge: it writes the rows that were meant."""
    row = {"text": "Café, naïve – déjà vu" if encoding == "cp1252" else "你好，世界。这是一个测试。"}
    (tmp_path / "rows.jsonl").write_bytes(json.dumps(row, ensure_ascii=False).encode(encoding))
    with pytest.raises(DataError, match=r"data\.not_utf8") as caught:
        rows_of(tmp_path / "rows.jsonl")
    command = caught.value.diagnostics[0].hint.partition("; ")[0]
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    (tmp_path / "NEW").rename(tmp_path / "new.jsonl")
    assert rows_of(tmp_path / "new.jsonl")[0].value == row


@pytest.mark.parametrize("orient", ["columns", "index", "split", "table"])
def test_a_frame_of_pandas_is_named_with_what_reads_it(
    orient: Literal["columns", "index"], tmp_path: Path
) -> None:
    """pandas is the judge: what the remedy says gives the rows."""
    import pandas

    path = tmp_path / "frame.json"
    pandas.DataFrame(ROWS).to_json(path, orient=orient)
    with pytest.raises(DataError, match=r"data\.not_a_list") as caught:
        rows_of(path)
    named = re.search(r"orient='(\w+)'", caught.value.diagnostics[0].hint)
    assert named is not None
    again = pandas.read_json(path, orient=named[1])  # type: ignore[call-overload]
    again.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    assert [row.value for row in rows_of(tmp_path / "rows.jsonl")] == ROWS


@pytest.mark.parametrize(
    "row",
    [
        {"schema": "CREATE TABLE t (a)", "data": "SELECT a FROM t"},
        {"schema": {"a": "int"}, "data": [1]},
        {"columns": "a, b", "index": 0, "data": ["x"]},
        {"columns": ["a"], "index": 0, "data": "x"},
    ],
)
def test_rows_with_the_keys_of_a_frame_are_rows(row: Row, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert [one.value for one in rows_of(tmp_path / "a.jsonl")] == [row]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "b.json"])
def test_rows_within_one_object_get_the_command_that_takes_them_out(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f'{{{chr(10) if name == "b.json" else ""}"data": [{{"text": "a"}}]}}')
    with pytest.raises(DataError, match=r"data\.not_a_list(.|\n)*jq -c '\.\"data\"\[\]'"):
        rows_of(tmp_path / name)


def test_rows_of_one_list_each_are_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"dialog": [{"said": "a"}]}\n' * 2)
    assert [row.value for row in rows_of(tmp_path / "a.jsonl")] == [{"dialog": [{"said": "a"}]}] * 2


def test_a_folder_leaves_other_splits_aside_and_says_so(tmp_path: Path) -> None:
    for name in ("gsm_train.jsonl", "gsm_test.jsonl", "more.jsonl"):
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    (tmp_path / "README.md").write_text("about")
    located = locate(str(tmp_path), "train")
    assert [f.name for f in located.files] == ["gsm_train.jsonl"]
    assert {"gsm_test.jsonl", "README.md", "more.jsonl"} <= set(re.split("[ ,]+", located.note))
    assert [f.name for f in locate(str(tmp_path), "test").files] == ["gsm_test.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("e.json", "", "data.empty", "e.json"),
        ("e.jsonl", " \n \n", None, ""),
        ("n.json", "hello world\n", "data.not_json", "n.json:1"),
        ("n.jsonl", "hello\n" * 30, "data.not_json", "n.jsonl:1"),
        ("n2.jsonl", "hello\n", "data.not_json", "n2.jsonl:1"),
        ("d.json", '{\n "rows": []\n}', "data.not_a_list", "rows"),
        ("t.json", '[\n{"a": 1},\n{"a": ', "data.not_json", "t.json:3"),
        ("c.json", '[\n{"a": 1}\n{"a": 2}]', "data.not_json", "c.json:3"),
        ("x.json", '[{"a": 1}] and more', "data.not_json", "and more"),
        ("l.jsonl", '{"text": "\xe9"}', "data.not_utf8", "l.jsonl:1"),
        ("p.parquet", "no", "data.not_parquet", "p.parquet"),
        ("q.csv", 'a,b\n"x,1\n', "data.not_csv", "q.csv:2"),
        ("deep.jsonl", "[" * 100_000, "data.not_json", "deeply"),
        ("x.xml", "<a/>", "data.unknown_suffix", ".jsonl"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: str, code: str | None, said: str
) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    if code is None:
        assert rows_of(tmp_path / name) == []
        return
    with pytest.raises(DataError) as caught:
        rows_of(tmp_path / name)
    assert caught.value.diagnostics[0].code == code
    assert said in str(caught.value)


def test_a_bad_line_is_a_problem_of_its_row(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text('{"text": "a"}\n{"text": \n[1]\n{"text": "b"}\n')
    rows = rows_of(path)
    assert [(r.where.rpartition(":")[2], r.reason) for r in rows] == [
        ("1", ""),
        ("2", "bad_json"),
        ("3", "not_an_object"),
        ("4", ""),
    ]


def test_a_csv_record_of_another_width_is_a_problem_of_its_row(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text("prompt,completion\na,b\na,b,c\n")
    assert [r.reason for r in rows_of(path)] == ["", "bad_csv"]


@pytest.mark.parametrize("path", ["/no/such/file.jsonl", "nowhere.jsonl", "./nowhere", "a/b/c"])
def test_what_is_not_there_is_no_hub_name(path: str) -> None:
    with pytest.raises(DataError, match=r"data\.missing"):
        locate(path, "train")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.empty_folder"):
        locate(str(tmp_path), "train")


def test_a_hub_name_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(*args: object, **kwargs: object) -> None:
        raise ConnectionError("Couldn't reach 'owner/name' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    assert locate("owner/name", "train").hub == "owner/name"
    with pytest.raises(DataError, match=r"data\.hub.*\n.*Couldn't reach"):
        rows_of("owner/name")
