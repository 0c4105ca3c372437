"""JSON or a table under the name of plain text is refused; text that only mentions braces is text. And no
hint advises what is set.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from data_fixtures import QA, prepared_from, write_jsonl

from paceline.core.errors import DataError
from paceline.data.rows.row_errors import REASONS, PrepareCounts, Problem, Tally, refusal
from paceline.data.sources.locate import locate
from paceline.data.sources.readers import read_rows

LINES = "".join(json.dumps(row) + "\n" for row in QA)
DISGUISED = {
    "lines": (LINES, "jsonl"),
    "many lines": (LINES * 200, "jsonl"),
    "one line": (json.dumps(QA[0]), "jsonl"),
    "with a mark in front": ("\ufeff\n" + LINES, "jsonl"),
    "a list": (json.dumps(QA), "json"),
    "an indented list": (json.dumps(QA, indent=2), "json"),
    "an indented object": (json.dumps({"rows": QA}, indent=2), "json"),
    "a table": ("instruction,input,output\na,b,c\n", "csv"),
    "a quoted table": ('"prompt","completion"\n"a","b"\n', "csv"),
    "a table with tabs": ("question\tanswer\na\tb\n", "tsv"),
    "pairs": ("prompt,chosen,rejected\na,b,c\n", "csv"),
}
TEXTS = [
    "{braces} stand here\nand there\n",
    "[1] a list of notes\n[2] more\n",
    "Dear prompt, dear completion,\nyours\n",
    '{"a": 1}\nis what it printed\n',
    "{{ jinja }}\n",
    "answer\n",
    "[ { x } ]\n",
]


def rows_of(path: Path) -> list:
    return list(read_rows(locate(str(path), "train"), "train"))


@pytest.mark.parametrize("kind", DISGUISED)
def test_rows_under_the_name_of_text_are_refused(kind: str, tmp_path: Path) -> None:
    text, suffix = DISGUISED[kind]
    path = tmp_path / "rows.txt"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=rf"data\.disguised\] {path}:1(.*\n)*.*\.{suffix}"):
        rows_of(path)
    if suffix != "csv":
        with pytest.raises(DataError, match=r"data\.disguised"):
            rows_of(path.rename(tmp_path / "rows.csv"))


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert [row.value["text"] for row in rows_of(tmp_path / "a.txt")] == text.splitlines()


@pytest.mark.parametrize("name", ["rows.md", "rows", "rows.log"])
def test_other_names_are_refused_with_those_that_can_be_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(LINES)
    with pytest.raises(DataError, match=r"data\.unknown_suffix(.*\n)*.*JSON lines \.jsonl"):
        rows_of(tmp_path / name)


POLICY = {"refused": "refuse", "skipped": "skip", "truncated": "truncate"}


@pytest.mark.parametrize("reason", REASONS)
def test_no_hint_about_rows_advises_the_policy_that_is_set(reason: str) -> None:
    tally, counts = Tally(), PrepareCounts(rows_read=9)
    tally.add("f:1")
    counts.skip(Problem(reason, "f:1"))
    counts.truncate(Problem(reason, "f:1"))
    said = dict(
        zip(
            ("refused", "skipped", "truncated"),
            (*refusal({reason: tally}, 9), *counts.diagnostics()),
            strict=True,
        )
    )
    for verb, finding in said.items():
        assert finding.hint
        for advised in re.findall(r"data\.on_(?:too_long|bad_row): ([a-z ]+)", finding.hint):
            assert POLICY[verb] not in advised.split(), (verb, finding.hint)


@pytest.mark.parametrize("policy", ["truncate", "skip", "refuse"])
def test_a_long_row_is_told_the_other_ways(policy: str, tokenizer: Path, tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "rows.jsonl",
        [QA[0], {"prompt": "Q", "completion": "A" * 60}][1:] + QA[:0] + [{"prompt": "Q", "completion": "A"}],
    )
    try:
        findings = prepared_from(path, tokenizer, tmp_path / "cache", max_length=32, on_too_long=policy).notes
    except DataError as error:
        findings = error.diagnostics
    (finding,) = (f for f in findings if f.code == "data.too_long")
    assert "data.max_length" in finding.hint and policy not in finding.hint.replace("on_too_long", "").split()
    assert "skip" in finding.hint or policy == "skip"


def test_another_evaluation_set_is_the_same_training(tokenizer: Path, tmp_path: Path) -> None:
    train, held = write_jsonl(tmp_path / "a.jsonl", QA[:10]), write_jsonl(tmp_path / "b.jsonl", QA[10:])
    alone, with_eval = (prepared_from(train, tokenizer, tmp_path / "c", eval=e) for e in (None, held))
    split = prepared_from(train, tokenizer, tmp_path / "c", validation_split=2)
    other = prepared_from(held, tokenizer, tmp_path / "c")
    assert (
        alone.train_fingerprint == with_eval.train_fingerprint and alone.fingerprint != with_eval.fingerprint
    )
    assert len({alone.train_fingerprint, split.train_fingerprint, other.train_fingerprint}) == 3
    for i in range(10):
        assert alone.train.row(i)[0].tolist() == with_eval.train.row(i)[0].tolist()
