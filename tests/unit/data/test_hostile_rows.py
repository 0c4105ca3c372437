"""Rows from strangers: whatever stands in them, preparation gives documents or names file and line;
nothing else comes out.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import QA, make_tokenizer, prepared_from, write_jsonl
from test_fields import FORMATS

from paceline.core.errors import DataError
from paceline.data.rows.values import MAX_DEPTH
from paceline.data.sources import readers
from paceline.data.sources.locate import locate
from paceline.data.sources.readers import read_rows


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(
        tmp_path_factory.mktemp("chat"),
        chat_template=(
            "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}<|end|>{%"
            " endfor %}"
        ),
    )


def deep(levels: int, kind: str = "[") -> str:
    return "[" * levels + "]" * levels if kind == "[" else '{"a":' * levels + "1" + "}" * levels


BAD_LINES = {
    "NaN": ('{"prompt": NaN, "completion": "A"}', "NaN is not a JSON number"),
    "Infinity in a column nobody reads": (
        '{"prompt": "Q", "completion": "A", "x": -Infinity}',
        "-Infinity is not a JSON number",
    ),
    "beyond floats": ('{"prompt": 1e999, "completion": "A"}', "1e999"),
    "an integer without end": ('{"prompt": ' + "9" * 5000 + ', "completion": "A"}', "4300"),
    "a key twice": ('{"prompt": "Q", "prompt": "R", "completion": "A"}', "'prompt' appears twice"),
    "a key twice, deeper": (
        '{"prompt": "Q", "completion": "A", "x": [{"b": 1, "b": 2}]}',
        "'b' appears twice",
    ),
    "nested lists": ('{"prompt": "Q", "completion": "A", "x": ' + deep(900) + "}", "nested too deeply"),
    "nested objects": (
        '{"prompt": "Q", "completion": "A", "x": ' + deep(MAX_DEPTH, "{") + "}",
        "nested too deeply",
    ),
    "nested without end": ("[" * 100_000, "nested too deeply"),
    "a raw control character": ('{"prompt": "\x01", "completion": "A"}', "control character"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_line_that_is_no_json_is_refused_by_its_place(kind: str, tokenizer: Path, tmp_path: Path) -> None:
    line, said = BAD_LINES[kind]
    rows = [json.dumps({"prompt": "Q", "completion": "A"})] * 3
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*rows, line, *rows]))
    with pytest.raises(DataError) as caught:
        prepared_from(str(path), tokenizer, tmp_path / "cache")
    (finding,) = caught.value.diagnostics
    assert (finding.code, finding.where) == ("data.bad_json", f"{path}:4") and said in finding.found
    assert prepared_from(str(path), tokenizer, tmp_path / "cache", on_bad_row="skip").counts.rows_used == 6


@pytest.mark.parametrize("kind", [k for k in BAD_LINES if "without end" not in k or "integer" in k])
def test_in_a_list_it_is_refused_by_its_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[\n{"prompt": "Q", "completion": "A"},\n' + BAD_LINES[kind][0] + "\n]")
    with pytest.raises(DataError, match=rf"data\.not_json\] {path}:3"):
        list(read_rows(locate(str(path), "train"), "train"))


def test_as_deep_as_allowed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a", "x": ' + deep(MAX_DEPTH - 1) + "}")
    assert [row.reason for row in read_rows(locate(str(path), "train"), "train")] == [""]


@pytest.mark.parametrize("suffix", ["jsonl", "txt", "csv"])
def test_a_line_without_end_is_named_before_it_is_held(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_LINE", 1000)
    path = tmp_path / f"rows.{suffix}"
    path.write_text('"text"\n"' + "x" * 5000)
    with pytest.raises(DataError, match=rf"{path}:[12]: "):
        list(read_rows(locate(str(path), "train"), "train"))


def test_a_long_field_of_a_csv_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text\n" + "x" * 300_000 + "\n")
    assert [
        len(row.value["text"]) for row in read_rows(locate(str(path), "train"), "train") if row.value
    ] == [300_000]


@pytest.mark.parametrize("suffix", ["txt", "csv", "jsonl"])
def test_binary_and_utf16_are_no_text(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{suffix}"
    path.write_bytes("text\nhello\n".encode("utf-16-le"))
    with pytest.raises(DataError, match=rf"data\.not_utf8\] {path}:\d.*\n.*NUL"):
        list(read_rows(locate(str(path), "train"), "train"))


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.csv").write_text("text,text\na,b\n")
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "b.parquet")
    with pa.ipc.new_file(str(tmp_path / "c.arrow"), table.schema) as out:
        out.write_table(table)
    for name in ("a.csv", "b.parquet", "c.arrow"):
        with pytest.raises(DataError, match=r"data\.two_columns(.*\n)*.*two columns have the name 'text'"):
            list(read_rows(locate(str(tmp_path / name), "train"), "train"))


def test_numbers_that_are_none_in_parquet(tokenizer: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["Q", "Q"], "completion": [1.5, float("nan")]}), path)
    with pytest.raises(DataError, match=rf"data\.not_finite\] {path}:row 2"):
        prepared_from(str(path), tokenizer, tmp_path / "cache")


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    10**18,
    10**4000,
    1.5,
    "",
    " ",
    "x",
    "\ud800",
    "a\udfffb",
    "\0",
    "é" * 50,
    "\u202e",
    "<|end|>",
    "{{ 1 }}",
    [],
    {},
    [[]],
    [{}],
    [None],
    ["a", "b"],
    [["a"]],
    [["a", "b", "c"]],
    [1],
    {"role": "user"},
    {"from": "gpt"},
    [{"role": "user", "content": None}],
    [{"role": None, "content": "x"}],
    [{"role": ["user"], "content": {"type": "text", "text": "x"}}],
    [{"from": "human", "value": [{"type": "text", "text": "\ud800"}]}],
    [{"role": "assistant"}, "x"],
    [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}],
    {"type": "image"},
    [[{"role": "user", "content": "x"}]],
    {"a": "\ud800"},
]


@pytest.mark.parametrize("kind", FORMATS)
def test_any_value_in_any_field_gives_a_document_or_a_name(kind: str, chat: Path, tmp_path: Path) -> None:
    """Each value in each column and each field of a turn, and columns mixed from row to row: one
    preparation a format, bad rows skipped.
    """
    plain, columns, options = FORMATS[kind]
    rows: list[dict[str, Any]] = [plain] * 64  # so that the shape is known
    for value in VALUES:
        rows += [
            {**plain, name: value} for name in (*plain, "system", "input", "history", "margin", "tools", "zq")
        ]
        for column in columns:
            turns = plain[column] if isinstance(plain[column], list) else [plain[column]]
            for number, turn in enumerate(turns):
                changed = [{**turn, name: value} for name in (*turn, "name", "weight", "tool_calls")]
                rows += [{**plain, column: [*turns[:number], one, *turns[number + 1 :]]} for one in changed]
    dice = random.Random(7)
    rows += [{name: dice.choice(VALUES) for name in plain} for _ in range(50)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    found = prepared_from(path, chat, tmp_path / "cache", on_bad_row="skip", **options)
    assert found.counts.rows_used + found.counts.rows_skipped == len(rows) and found.counts.rows_used >= 64
    places = {tally.first_place for tally in found.counts.skipped.values()}
    assert len(found.counts.skipped) > 2 or not columns
    assert all(place.startswith(f"{path}:") for place in places)
    with pytest.raises(DataError) as caught:
        prepared_from(path, chat, tmp_path / "cache", **options)
    assert all(d.where.startswith(f"{path}:") and d.hint for d in caught.value.diagnostics)


def test_names_of_columns_that_cannot_be_written_are_refused_and_long_ones_cut(
    tokenizer: Path, tmp_path: Path
) -> None:
    rows = [{**QA[0], "a\x1b[31m": "x", "n" * 5000: "x", "\U0001f600": "x"}, {**QA[0], "\ud800": "x"}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError, match=r"data\.bad_json.*rows\.jsonl:2") as caught:
        prepared_from(path, tokenizer, tmp_path / "cache")
    str(caught.value).encode()
    found = prepared_from(path, tokenizer, tmp_path / "cache", on_bad_row="skip")
    (note,) = (n for n in found.notes if n.code == "data.fields_unread")
    assert len(note.render().encode()) < 1000 and "\U0001f600" in note.what
