"""Preparation from file to table: found again at once, made anew when anything changes, never silent about
a row.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_fixtures import QA, make_tokenizer, prepared_from, write_jsonl

from paceline.config.sections.data import DataSection
from paceline.core.diagnostics import Severity
from paceline.core.errors import DataError
from paceline.data.packed_source import PackedSource
from paceline.data.preflight.check_sets import look_at_sets
from paceline.data.prepare.main import main
from paceline.data.prepare.prepare import Prepared, check_token_range
from paceline.data.rows.examples import Reading
from paceline.data.tokenizer.load import open_tokenizer, pad_token_id, tokenizer_spec


def texts(prepared: Prepared, table: Any = None) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(prepared.tokenizer_path))
    table = table or prepared.train
    return [tokenizer.decode(table.row(i)[0]) for i in range(len(table))]


def codes(prepared: Prepared) -> set[str]:
    return {note.code for note in prepared.notes}


@pytest.fixture
def rows(tmp_path: Path) -> str:
    return write_jsonl(tmp_path / "rows.jsonl", QA)


def test_rows_become_documents_with_labelled_answers(rows: str, tokenizer: Path, tmp_path: Path) -> None:
    p = prepared_from(rows, tokenizer, tmp_path / "cache")
    assert texts(p) == [f"Question {i}?\nAnswer {i}.<|end|>" for i in range(20)]
    ids, labels = p.train.row(3)
    answer = len("Question 3?\n")
    assert labels[:answer].tolist() == [-100] * answer
    assert labels[answer:].tolist() == ids[answer:].tolist()
    assert (p.train.lengths[3], p.train.num_labels[3]) == (len(ids), len("Answer 3.") + 1)
    assert (p.counts.rows_read, p.counts.rows_used, p.counts.train_documents, p.counts.eval_documents) == (
        20,
        20,
        20,
        0,
    )
    assert (p.counts.tokens, p.counts.labels) == (p.train.num_tokens, int(p.train.num_labels.sum()))
    assert {"data.format", "data.plain_template"} <= codes(p)
    assert not [n for n in p.notes if n.severity is not Severity.NOTE]
    assert p.train.lengths.dtype == np.int32


def test_rows_that_lie_elsewhere_now_are_named_where_they_lie(tokenizer: Path, tmp_path: Path) -> None:
    """The same bytes under another name are found in the cache; its notes named the first one's folder."""
    cache, bad = tmp_path / "cache", [*QA, {"instruction": "", "output": ""}]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        file = write_jsonl(tmp_path / name / "rows.jsonl", bad)
        found = prepared_from(file, tokenizer, cache, on_bad_row="skip")
        told = json.dumps([note.to_json() for note in found.notes]) + json.dumps(found.counts.to_json())
        assert f"{file}:21" in told and "first" in told if name == "first" else "first" not in told
    assert found.from_cache and f"{file}:21" in told


def test_a_second_run_finds_it_and_any_change_makes_it_anew(
    rows: str, tokenizer: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = prepared_from(rows, tokenizer, cache)
    again = prepared_from(rows, tokenizer, cache)
    assert (first.from_cache, again.from_cache) == (False, True)
    assert (again.fingerprint, texts(again), again.notes) == (first.fingerprint, texts(first), first.notes)
    assert again.counts.to_json() == first.counts.to_json()
    changes: list[dict[str, Any]] = [
        {"max_length": 128},
        {"train_on": "all"},
        {"on_too_long": "skip"},
        {"validation_split": 2},
        {"validation_split": 2, "seed": 2},
        {"model": {"chat_template": "chatml"}},
        {"model": {"add_tokens": ["xyz"]}},
    ]
    keys = [prepared_from(rows, tokenizer, cache, **change).fingerprint for change in changes]
    with Path(rows).open("a") as stream:
        stream.write(json.dumps(QA[0] | {"instruction": "new"}) + "\n")
    keys.append(prepared_from(rows, tokenizer, cache).fingerprint)
    other = make_tokenizer(tmp_path / "other", eos="<|im_end|>")
    keys.append(prepared_from(rows, other, cache).fingerprint)
    assert len({first.fingerprint, *keys}) == len(keys) + 1


def test_weight_and_place_do_not_change_the_tokens(rows: str, tokenizer: Path, tmp_path: Path) -> None:
    one = prepared_from(rows, tokenizer, tmp_path / "cache")
    heavy = prepared_from([{"path": rows, "weight": 2.5}], tokenizer, tmp_path / "cache")
    assert heavy.from_cache
    assert heavy.train.weights == (2.5,)
    assert "data.mixture" in codes(heavy)
    (tmp_path / "moved").mkdir()
    moved = Path(rows).rename(tmp_path / "moved" / "rows.jsonl")
    assert prepared_from(str(moved), tokenizer, tmp_path / "cache").fingerprint == one.fingerprint


@pytest.mark.parametrize("damage", ["truncated", "no meta", "no index", "garbage meta"])
def test_a_damaged_cache_is_made_anew_with_a_note(
    rows: str, tokenizer: Path, tmp_path: Path, damage: str
) -> None:
    first = prepared_from(rows, tokenizer, tmp_path / "cache")
    want = texts(first)
    tokens, meta, index = (first.path / name for name in ("tokens.arrow", "meta.json", "train.npy"))
    if damage == "truncated":
        tokens.write_bytes(tokens.read_bytes()[:-10])
    elif damage == "garbage meta":
        meta.write_text("{")
    else:
        (meta if damage == "no meta" else index).unlink()
    again = prepared_from(rows, tokenizer, tmp_path / "cache")
    assert not again.from_cache
    assert "data.cache_rebuilt" in codes(again)
    assert texts(again) == want
    assert "data.cache_rebuilt" not in codes(prepared_from(rows, tokenizer, tmp_path / "cache"))


def test_nothing_but_the_set_is_left_in_the_cache(rows: str, tokenizer: Path, tmp_path: Path) -> None:
    first = prepared_from(rows, tokenizer, tmp_path / "cache")
    assert sorted(p.name for p in (tmp_path / "cache" / "prepared").iterdir()) == [first.fingerprint]


def test_a_cache_that_cannot_be_written_is_named(rows: str, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"data\.cache_write.*\n.*\n.*data\.cache_dir"):
        prepared_from(rows, tokenizer, tmp_path / "file")


BAD = [
    {"instruction": "Q", "output": ""},
    {"instruction": "", "output": ""},
    {"instruction": "Q"},
]


def test_bad_rows_are_refused_with_every_reason_and_place(tokenizer: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "bad.jsonl", [*QA, *BAD])
    with Path(path).open("a") as stream:
        stream.write('{"instruction": \n')
    with pytest.raises(DataError) as caught:
        prepared_from(path, tokenizer, tmp_path / "cache")
    assert {(d.code, d.where.rpartition(":")[2]) for d in caught.value.diagnostics} == {
        ("data.no_answer", "21"),
        ("data.empty", "22"),
        ("data.missing_column", "23"),
        ("data.bad_json", "24"),
    }
    assert list((tmp_path / "cache" / "prepared").iterdir()) == []


def test_bad_rows_are_skipped_counted_and_told(tokenizer: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "bad.jsonl", [*QA, *BAD])
    p = prepared_from(path, tokenizer, tmp_path / "cache", on_bad_row="skip")
    assert (p.counts.rows_read, p.counts.rows_used, p.counts.rows_skipped) == (23, 20, 3)
    assert {reason: tally.count for reason, tally in p.counts.skipped.items()} == {
        "no_answer": 1,
        "empty": 1,
        "missing_column": 1,
    }
    assert p.counts.skipped["empty"].examples[0].startswith(f"{path}:22")
    warned = {n.code for n in p.notes if n.severity is Severity.WARNING}
    assert warned == {"data.no_answer", "data.empty", "data.missing_column"}


LONG = [
    {"prompt": "Q" * 10, "completion": "A" * 50},
    {"prompt": "Q" * 60, "completion": "A"},
    {"prompt": "Q", "completion": "A"},
]


def test_long_rows_by_policy(tokenizer: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "long.jsonl", LONG)
    cut = prepared_from(path, tokenizer, tmp_path / "cache", max_length=32)
    assert cut.train.lengths.tolist() == [32, 4]
    assert cut.longest == 32
    assert (cut.counts.truncated["too_long"].count, cut.counts.skipped["answer_cut_off"].count) == (1, 1)
    skipped = prepared_from(path, tokenizer, tmp_path / "cache", max_length=32, on_too_long="skip")
    assert skipped.counts.skipped["too_long"].count == 2
    with pytest.raises(DataError, match=r"data\.too_long\] .*long\.jsonl:1.*2 of 3 rows refused"):
        prepared_from(path, tokenizer, tmp_path / "cache", max_length=32, on_too_long="refuse")


@pytest.mark.parametrize(
    ("rows", "options", "code"),
    [
        (
            [{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}],
            {},
            "data.no_chat_template",
        ),
        (LONG[1:2], {"max_length": 16}, "data.no_usable_rows"),
        (
            LONG,
            {"max_length": 16, "model": {"chat_template": "{% for m in messages %}"}},
            "data.bad_chat_template",
        ),
        (LONG, {"model": {"chat_template": "chatmal"}}, "data.bad_chat_template"),
        (LONG, {"validation_split": 3}, "data.cannot_split"),
        ([LONG[2]] * 4, {"validation_split": 1}, "data.cannot_split"),
        (LONG, {"validation_split": 1, "eval": "same"}, "data.two_evals"),
        (LONG, {"model": {"tokenizer": "/no/such"}}, "data.no_tokenizer"),
        (LONG, {"model": {"tokenizer": None}}, "data.no_tokenizer"),
        ([{"text": ""}], {}, "data.empty"),
        ([{"text": ""}], {"on_bad_row": "skip"}, "data.no_usable_rows"),
    ],
)
def test_what_cannot_be_prepared_is_named(
    tokenizer: Path, tmp_path: Path, rows: list, options: dict, code: str
) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    model = {"tokenizer": str(tokenizer), **options.pop("model", {})}
    if "eval" in options:
        options["eval"] = path
    from data_fixtures import DataSection, ModelSection, prepare

    data = DataSection(train=path, num_proc=1, **options)
    with pytest.raises(DataError) as caught:
        prepare(data, ModelSection(**model), seed=1, cache_dir=tmp_path / "cache")
    assert caught.value.diagnostics[0].code == code
    assert all(d.hint or d.found for d in caught.value.diagnostics)


@pytest.mark.parametrize("sets", [["bad"], ["bad", "good"], ["bad", "bad"], ["mixed"], ["mixed", "bad"]])
def test_sets_of_which_no_row_is_left_are_found_by_the_look_too(
    sets: list[str], tokenizer: Path, tmp_path: Path
) -> None:
    bad, good = {"text": ""}, {"text": "tide"}
    rows = {"bad": [bad] * 3, "good": [good], "mixed": [bad, good]}
    paths = [write_jsonl(tmp_path / f"{n}.jsonl", rows[name]) for n, name in enumerate(sets)]
    try:
        prepared_from(paths, tokenizer, tmp_path / "cache", on_bad_row="skip")
        expected = []
    except DataError as error:
        expected = [d.code for d in error.diagnostics]
    _, found = look_at_sets(DataSection(train=paths, on_bad_row="skip"), Reading())
    assert list(dict.fromkeys(d.code for d in found)) == expected


def test_no_labels_at_all(tokenizer: Path, tmp_path: Path) -> None:
    silent = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if false %}{% generation %}{% endgeneration"
        " %}{% endif %}"
    )
    path = write_jsonl(tmp_path / "rows.jsonl", QA)
    with pytest.raises(DataError, match=r"data\.no_labels"):
        prepared_from(path, tokenizer, tmp_path / "cache", model={"chat_template": silent}, on_bad_row="skip")


def test_several_missing_sets_are_named_at_once(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        prepared_from(["./one.jsonl", "./two.jsonl"], tokenizer, tmp_path / "cache")
    assert [d.where for d in caught.value.diagnostics] == ["./one.jsonl", "./two.jsonl"]


def test_the_models_positions(rows: str, tokenizer: Path, tmp_path: Path) -> None:
    from data_fixtures import DataSection, ModelSection, prepare

    data, model = DataSection(train=rows, num_proc=1), ModelSection(tokenizer=str(tokenizer))
    longest = prepare(data, model, seed=1, cache_dir=tmp_path / "cache", max_positions=64).longest
    with pytest.raises(DataError, match=rf"data\.max_positions.*\n.*\n.*data\.max_length: {longest - 1}"):
        prepare(data, model, seed=1, cache_dir=tmp_path / "cache", max_positions=longest - 1)


def test_added_tokens_count_in_the_vocabulary(tokenizer: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a xyz b"}])
    before = prepared_from(path, tokenizer, tmp_path / "cache")
    after = prepared_from(
        path, tokenizer, tmp_path / "cache", model={"add_tokens": ["xyz"], "add_special_tokens": ["<s>"]}
    )
    assert after.vocab_size == before.vocab_size + 2
    assert after.train.lengths[0] == before.train.lengths[0] - 2
    assert check_token_range(after, after.vocab_size) == []
    assert check_token_range(after, before.vocab_size)[0].code == "data.token_range"


def test_a_pad_token_and_a_chat_template_of_its_own(tmp_path: Path) -> None:
    from data_fixtures import ModelSection

    folder = make_tokenizer(tmp_path / "t", chat_template="{{ messages[0].content }}")
    tokenizer = open_tokenizer(tokenizer_spec(ModelSection(tokenizer=str(folder), chat_template="chatml")))
    assert tokenizer.pad_token is None and pad_token_id(tokenizer) == tokenizer.eos_token_id  # a filler
    assert "im_start" in str(tokenizer.chat_template)


def test_chatml_on_a_tokenizer_without_its_marks_is_warned_of(rows: str, tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "t")
    p = prepared_from(rows, folder, tmp_path / "cache", model={"chat_template": "llama3"})
    assert any(n.code == "data.template_token" and "<|eot_id|>" in n.what for n in p.notes)


def test_several_sets_and_evaluation(tokenizer: Path, tmp_path: Path) -> None:
    one, two = (
        write_jsonl(tmp_path / "one.jsonl", QA[:5]),
        write_jsonl(tmp_path / "two.jsonl", [{"text": "plain"}] * 3),
    )
    held = write_jsonl(tmp_path / "held.jsonl", QA[3:7])
    p = prepared_from([one, {"path": two, "max_rows": 2}], tokenizer, tmp_path / "cache", eval=held)
    assert p.eval is not None
    assert p.train.dataset.tolist() == [0] * 5 + [1] * 2
    assert texts(p, p.eval) == [f"Question {i}?\nAnswer {i}.<|end|>" for i in range(3, 7)]
    overlap = next(n for n in p.notes if n.code == "data.eval_overlap")
    assert overlap.evidence["count"] == 2
    assert overlap.severity is Severity.WARNING
    assert "data.max_rows" in codes(p)


def test_the_validation_split_does_not_leak(tokenizer: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Q{i % 30}" + " " * (i % 3), "completion": f"A{i}"} for i in range(100)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    p = prepared_from(path, tokenizer, tmp_path / "cache", validation_split=0.2)
    assert p.eval is not None
    assert len(p.train) + len(p.eval) == 100
    assert 15 <= len(p.eval) <= 20
    questions = [{t.split("\n")[0].strip() for t in texts(p, table)} for table in (p.train, p.eval)]
    assert not questions[0] & questions[1]
    assert sorted([*p.train.source_row.tolist(), *p.eval.source_row.tolist()]) == list(range(100))


def test_data_of_a_run_feeds_batches(rows: str, tokenizer: Path, tmp_path: Path) -> None:
    p = prepared_from(rows, tokenizer, tmp_path / "cache", validation_split=5)
    source = PackedSource(p.train, seq_len=64, packing=True, seed=1, pad_token_id=p.pad_token_id)
    batch = source.batch(0, list(range(source.num_rows(0))))
    assert batch.num_tokens == p.train.num_tokens
    assert int(batch.num_labels()) == int(p.train.num_labels.sum())


def test_the_command_prepares_and_tells(
    rows: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.config.schema import Config

    described = {
        "model": {"tokenizer": str(tokenizer)},
        "data": {"train": rows, "num_proc": 1, "max_length": 64, "validation_split": 2},
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps(Config.from_json(described).to_json()))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"config": json.loads(config.read_text())}))
    assert main(["--config-json", str(config), "--cache", str(tmp_path / "cache")]) == 0
    out = capsys.readouterr().out
    assert "20 read, 20 used, 0 skipped" in out
    assert "18 for training, 2 held out" in out
    assert "% full" in out
    assert main(["--plan", str(plan), "--cache", str(tmp_path / "cache")]) == 0
    assert "found in the cache" in capsys.readouterr().out
    os.unlink(rows)
    assert main(["--plan", str(plan), "--cache", str(tmp_path / "cache")]) == 2
    assert "data.missing" in capsys.readouterr().err
    assert main(["--plan", str(tmp_path / "none.json")]) == 2
