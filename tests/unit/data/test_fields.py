"""No field of a row or a turn is lost in silence: refused by name, counted and named once, or known to say
nothing of the text.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import make_tokenizer, prepared_from, write_jsonl

from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data.preflight.check_sets import look_at_sets
from paceline.data.rows.examples import HARMLESS, Reading, is_empty
from paceline.data.rows.row_errors import FIELDS_NAMED
from paceline.data.sources.readers import RawRow

U, A = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
# format -> (a row, columns that hold turns, how it is prepared)
FORMATS: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "messages": ({"messages": [U, A]}, ("messages",), {}),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
        ("conversations",),
        {},
    ),
    "alpaca": ({"instruction": "Q", "input": "", "output": "A"}, (), {}),
    "prompt_completion": ({"prompt": "Q", "completion": "A"}, (), {}),
    "prompt_completion of turns": ({"prompt": [U], "completion": [A]}, ("prompt", "completion"), {}),
    "text": ({"text": "Once"}, (), {}),
    "preference": ({"prompt": "Q", "chosen": "A", "rejected": "B"}, (), {"rows": "pairs"}),
    "preference of turns": (
        {"prompt": [U], "chosen": [A], "rejected": {"role": "assistant", "content": "B"}},
        ("prompt", "chosen", "rejected"),
        {"rows": "pairs"},
    ),
    "preference without a prompt": (
        {"chosen": [U, A], "rejected": [U, {**A, "content": "B"}]},
        ("chosen", "rejected"),
        {"rows": "pairs"},
    ),
    "prompts of turns": ({"prompt": [U], "answer": "A"}, ("prompt",), {"rows": "prompts"}),
}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(
        tmp_path_factory.mktemp("chat"),
        chat_template=(
            "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}<|end|>{%"
            " endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
        ),
    )


def with_field(kind: str, name: str, value: Any, turns: bool) -> tuple[dict[str, Any], str]:
    """A row of this kind with one more field (of its first turns' column, or of its own), and how that
    field is called.
    """
    row, columns, _ = FORMATS[kind]
    row = json.loads(json.dumps(row))
    if not turns:
        return {**row, name: value}, name
    column = columns[-1]
    several = row[column] if isinstance(row[column], list) else [row[column]]
    several[-1][name] = value
    return row, f"{column}[].{name}"


def prepared(kind: str, rows: list[dict[str, Any]], chat: Path, tmp_path: Path, **more: Any) -> Any:
    path = write_jsonl(tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl", rows)
    return prepared_from(path, chat, tmp_path / "cache", **FORMATS[kind][2], **more)


def unread(notes: tuple[Diagnostic, ...]) -> dict[str, int]:
    found = [n for n in notes if n.code == "data.fields_unread"]
    assert len(found) <= 1, "said more than once"
    return dict(found[0].evidence) if found else {}


def refused(kind: str, rows: list[dict[str, Any]], chat: Path, tmp_path: Path) -> tuple[Diagnostic, ...]:
    with pytest.raises(DataError) as caught:
        prepared(kind, rows, chat, tmp_path)
    return caught.value.diagnostics


PLACES = [(kind, False) for kind in FORMATS] + [
    (kind, True) for kind, (_, columns, _) in FORMATS.items() if columns
]


@pytest.mark.parametrize(("kind", "turns"), PLACES)
def test_an_unknown_field_is_counted_and_named_once(
    kind: str, turns: bool, chat: Path, tmp_path: Path
) -> None:
    named = [
        with_field(kind, name, "x", turns)
        for name in ("name", "zq_unheard_of", "Zq", "refusal", "annotations")
    ]
    plain = FORMATS[kind][0]
    found = prepared(kind, [plain, *(row for row, _ in named), plain, named[0][0]], chat, tmp_path)
    assert found.counts.rows_used == 8
    if kind.startswith("prompts") and not turns:  # such rows are kept whole, for rewards to look at
        assert unread(found.notes) == {}
        return
    first = "messages[].name" if turns else named[0][1]  # read, but not by this template
    called = [first, *(name for _, name in named[1:])]
    assert unread(found.notes) == {name: 1 + (name == first) for name in called}
    (note,) = (n for n in found.notes if n.code == "data.fields_unread")
    assert f"{first} (2 rows, first " in note.what and ".jsonl:2)" in note.what


LOST: dict[str, tuple[str, Any]] = {
    "tool_calls": ("tool_calls", [{"id": "1", "function": {"name": "f"}}]),
    "function_call": ("tool_calls", {"name": "f"}),
    "reasoning_content": ("reasoning", "because"),
    "images": ("images", ["a.png"]),
    "video": ("images", {"bytes": "…"}),
}
OF_TURNS: dict[str, tuple[str, Any]] = {
    "images": ("images", ["a.png"]),
    "video": ("images", {"bytes": "…"}),
    "reasoning_details": ("reasoning", [{"text": "because"}]),
    "tools": ("tools", [{"type": "function"}]),
}
# What the chat template of the test does not render: (field of a row or of a turn, reason, value).
NOT_RENDERED: list[tuple[str, bool, str, Any]] = [
    ("tools", False, "tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tools", False, "tools", '[{"name": "f"}]'),
    ("functions", False, "tools", [{"name": "f"}]),
    ("documents", False, "documents", [{"title": "a", "text": "b"}]),
    ("tool_calls", True, "tool_calls", [{"id": "1", "function": {"name": "f", "arguments": {}}}]),
    ("function_call", True, "tool_calls", {"name": "f", "arguments": "{}"}),
    ("reasoning_content", True, "reasoning", "because"),
    ("thinking", True, "reasoning", "because"),
]


@pytest.mark.parametrize(("kind", "turns"), PLACES)
def test_what_would_be_lost_is_refused_by_name(kind: str, turns: bool, chat: Path, tmp_path: Path) -> None:
    fields = OF_TURNS if turns else LOST
    rows = [with_field(kind, name, value, turns)[0] for name, (_, value) in fields.items()]
    found = {
        d.code.removeprefix("data."): d for d in refused(kind, [FORMATS[kind][0], *rows], chat, tmp_path)
    }
    places = {
        reason: [i for i, (name, (r, _)) in enumerate(fields.items(), 2) if r == reason]
        for reason, _ in fields.values()
    }
    assert {
        reason: (d.evidence["count"], int(d.where.rpartition(":")[2])) for reason, d in found.items()
    } == {reason: (len(at), at[0]) for reason, at in places.items()}
    for name, (reason, _) in fields.items():
        assert f"'{name}'" in found[reason].found


@pytest.mark.parametrize(("kind", "turns"), PLACES)
@pytest.mark.parametrize(("name", "of_turn", "reason", "value"), NOT_RENDERED)
def test_what_the_template_does_not_render_is_refused_by_name(
    name: str, of_turn: bool, reason: str, value: Any, kind: str, turns: bool, chat: Path, tmp_path: Path
) -> None:
    if of_turn != turns or (kind == "text" and name == "documents"):  # there it is a column like any other
        return
    row = with_field(kind, name, value, turns)[0]
    (finding,) = refused(kind, [FORMATS[kind][0], row], chat, tmp_path)
    assert finding.code == f"data.{reason}"
    assert finding.evidence["count"] == 1 and finding.where.endswith(":2")


@pytest.mark.parametrize(("kind", "turns"), PLACES)
def test_fields_that_say_nothing_pass_in_silence(kind: str, turns: bool, chat: Path, tmp_path: Path) -> None:
    empty = [None, "", [], {}, "[]", " ", {"name": None, "arguments": ""}, [{"x": None}]]
    rows = [
        with_field(kind, name, value, turns)[0] for name in ("tools", "tool_calls", "zq") for value in empty
    ]
    rows += [with_field(kind, name, "x", turns)[0] for name in HARMLESS]
    assert unread(prepared(kind, rows, chat, tmp_path).notes) == {}


def test_usual_weights_pass_and_those_of_turns_that_are_not_learnt(chat: Path, tmp_path: Path) -> None:
    row = {"messages": [{**U, "weight": 0, "train": False}, {**A, "weight": 1, "loss": True}]}
    assert prepared("messages", [row], chat, tmp_path).counts.rows_used == 1
    path = write_jsonl(tmp_path / "all.jsonl", [row])
    counts = [prepared_from(path, chat, tmp_path / "cache", train_on=t).counts for t in ("assistant", "all")]
    assert counts[0].labels == 2 and counts[1].labels == 12  # with the opening "assistant:" of the turn


def test_all_kinds_are_told_at_once_with_counts_and_first_places(chat: Path, tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "f"}]}
    rows: list[dict[str, Any]] = [
        {"messages": [U, A]},
        {"messages": [U, call], "tools": [{"name": "f"}]},
        {"messages": [U, {**A, "reasoning_content": "so"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "url": "x"}, {"type": "text", "text": "Q"}]},
                A,
            ]
        },
        {"messages": [U, {**A, "content": [{"type": "thinking", "thinking": "so"}]}, {**A, "weight": 0.5}]},
        {"messages": [U, {**A, "content": ""}]},
    ]
    found = {d.code: d for d in refused("messages", rows, chat, tmp_path)}
    assert {code: (d.evidence["count"], d.where.rpartition(":")[2]) for code, d in found.items()} == {
        "data.tools": (1, "2"),
        "data.tool_calls": (1, "2"),
        "data.reasoning": (1, "3"),
        "data.images": (1, "4"),
        "data.turn_weight": (1, "5"),
        "data.no_answer": (1, "6"),
    }
    assert all(d.hint for d in found.values())
    left_out = prepared("messages", rows, chat, tmp_path, on_bad_row="skip").counts
    assert (left_out.rows_used, left_out.rows_skipped) == (1, 5)


@pytest.mark.parametrize("role", ["function_call", "tool_call"])
def test_calls_as_turns_are_told_as_calls(role: str, chat: Path, tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "Q"},
        {"from": role, "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "A"},
    ]
    (finding,) = refused("sharegpt", [{"conversations": turns, "tools": "[]"}], chat, tmp_path)
    assert finding.code == "data.tool_calls" and "turn 2" in finding.found and "call" in finding.what
    plain = [turns[0], turns[2], turns[3]]
    assert prepared("sharegpt", [{"conversations": plain}], chat, tmp_path).counts.rows_used == 1
    wrong = [turns[0], {"from": role, "value": "f(1)"}, *turns[2:]]
    (finding,) = refused("sharegpt", [{"conversations": wrong}], chat, tmp_path)
    assert finding.code == "data.bad_tool_call" and "f(1)" in finding.found


def files_of(rows: list[dict[str, Any]], folder: Path) -> dict[str, Path]:
    """The same rows in every kind of file that holds them."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    datasets.disable_progress_bars()
    made = {name: folder / f"rows.{name}" for name in ("json", "jsonl", "csv", "parquet")} | {
        "saved": folder / "saved"
    }
    made["json"].write_text(json.dumps(rows))
    write_jsonl(made["jsonl"], rows)
    with made["csv"].open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), made["parquet"])
    datasets.Dataset.from_list(rows).save_to_disk(str(made["saved"]))
    return made


@pytest.mark.parametrize("reader", ["json", "jsonl", "csv", "parquet", "saved", "hub"])
def test_every_reader_brings_the_fields_along(
    reader: str, chat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"prompt": "Q", "completion": "A", "zq": "x", "id": "1"},
        {"prompt": "Q", "completion": "A", "zq": "", "id": "2"},
    ]
    with_tools = [{**row, "tools": '[{"name": "f"}]'} for row in rows]
    for number, (given, check) in enumerate(((rows, "unread"), (with_tools, "refused"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        files = files_of(given, folder)
        if reader == "hub":
            import datasets

            hub = datasets.load_from_disk(str(files["saved"]))
            monkeypatch.setattr(datasets, "load_dataset", lambda *a, _hub=hub, **k: _hub)
        path = "owner/name" if reader == "hub" else str(files[reader])
        if check == "unread":
            assert unread(prepared_from(path, chat, tmp_path / "cache").notes) == {"zq": 1}
        else:
            with pytest.raises(DataError, match=r"data\.tools.*2 of 2 rows"):
                prepared_from(path, chat, tmp_path / "cache")


def test_more_fields_than_can_be_named_are_counted(chat: Path, tmp_path: Path) -> None:
    row = {"prompt": "Q", "completion": "A", **{f"c{i}": "x" for i in range(FIELDS_NAMED + 7)}}
    note = next(
        n
        for n in prepared("prompt_completion", [row], chat, tmp_path).notes
        if n.code == "data.fields_unread"
    )
    assert "and 7 more" in note.what


def glance(config: Config) -> list[Any]:
    return look_at_sets(config.data, Reading())[1]


def test_a_plan_sees_it_in_the_first_rows(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    path = write_jsonl(tmp_path / "rows.jsonl", [{"messages": [U, A]}, {"messages": [U, call]}])
    config = Config.from_json({"data": {"train": path, "eval": path}})
    assert [(d.code, d.where) for d in glance(config)] == [
        ("data.bad_tool_call", "data.train"),
        ("data.bad_tool_call", "data.eval"),
    ]
    assert all(d.found.startswith(f"{path}:2") for d in glance(config))
    assert "1 of 2 rows" in glance(config)[0].what
    assert glance(Config.from_json({"data": {"train": path, "on_bad_row": "skip"}})) == []


def test_the_place_of_a_refused_row_is_named_once(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "rows.jsonl", [{"prompt": "Q", "completion": "A"}, {"prompt": "Q", "completion": None}]
    )
    config = Config.model_validate({"data": {"train": str(path)}})
    (finding,) = look_at_sets(config.data, Reading())[1]
    assert (
        finding.where == "data.train" and finding.found.count(str(path)) == 1 and f"{path}:2" in finding.found
    )


def test_only_the_first_rows_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.data.preflight import find_sets

    read: list[str] = []

    def counted(*args: Any) -> Any:
        for number in range(10_000):
            read.append(str(number))
            yield RawRow({"text": "x"}, f"f:{number}")

    monkeypatch.setattr(find_sets, "read_rows", counted)
    (tmp_path / "rows.jsonl").write_text("{}")
    assert glance(Config.from_json({"data": {"train": str(tmp_path / "rows.jsonl")}})) == []
    assert len(read) == find_sets.LOOKED_AT


@pytest.mark.parametrize("value", [0, False, "x", [0], {"a": 0}, 0.0])
def test_a_value_is_not_nothing(value: Any) -> None:
    assert not is_empty(value)


def test_tools_of_a_turn_are_told_to_move_to_the_row(chat: Path, tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "x", "tools": [{"type": "function"}]}, U, A]
    (finding,) = refused("messages", [{"messages": turns}], chat, tmp_path)
    assert finding.hint.startswith("move the field from the turn to the row")
    assert "does not render" not in finding.what
