"""Labels of the first rows are looked at before a start: classes that the config does not describe, answers
all of one label.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.training.preflight.inputs import check_inputs

KTO = {"prompt": "q", "completion": "a"}


CODES = ("data.classes", "data.one_label", "training.no_prompts")


def looked(
    folder: Path,
    rows: list[dict[str, Any]],
    algorithm: str,
    evaluated: list[dict[str, Any]] | None = None,
    data: dict[str, Any] | None = None,
    **options: Any,
) -> list[tuple[str, str]]:
    """(code, found) of what is wrong with the rows."""
    sections = dict(data or {})
    if evaluated is not None:
        sections["eval"] = str(folder / "eval.jsonl")
        (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluated))
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    training = {"algorithm": algorithm, **({algorithm: options} if options else {})}
    model = {"config": {"model_type": "llama"}, "tokenizer": "org/hub"}
    config = Config.model_validate(
        {"model": model, "data": {"train": str(file), **sections}, "training": training}
    )
    return [(d.code, d.found) for d in check_inputs(config, {}).found if d.code in CODES]


@pytest.mark.parametrize(
    ("labels", "options", "found"),
    [
        (["good", "ugly"], {"labels": ["bad", "good"]}, ["ugly"]),
        (["good", 0], {}, ["0, good"]),
        ([0, 7], {"num_labels": 3}, ["7"]),
        (["a", "b", "c"], {"num_labels": 2}, ["a, b, c"]),
        (["good", 0, "bad"], {"labels": ["bad", "good"]}, []),
        (["a", "b"] * 40, {"num_labels": 3}, []),
        ([0, "1"], {}, []),
    ],
)
def test_labels_that_are_no_classes_are_found_in_the_first_rows(
    labels: list[Any], options: dict[str, Any], found: list[str], tmp_path: Path
) -> None:
    rows = [{"text": f"t{i}", "label": label} for i, label in enumerate(labels)]
    assert looked(tmp_path, rows, "classification", **options) == [("data.classes", text) for text in found]


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([True] * 3, ["3 rows with label: true, 0 with label: false"]),
        ([False], ["0 rows with label: true, 1 with label: false"]),
        ([True, False], []),
        ([True] * 64, []),
    ],
)
def test_answers_of_one_label_are_told_where_all_rows_are_read(
    labels: list[bool], found: list[str], tmp_path: Path
) -> None:
    rows = [{**KTO, "label": label} for label in labels]
    assert looked(tmp_path, rows, "kto") == [("data.one_label", text) for text in found]


def test_labels_of_evaluation_data_are_found_too(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": label} for i, label in enumerate(["bad", "good"])]
    other = [{"text": "t", "label": "ugly"}]
    options = {"labels": ["bad", "good"]}
    assert looked(tmp_path, rows, "classification", rows, **options) == []
    assert looked(tmp_path, rows, "classification", other, **options) == [("data.classes", "ugly")]
    # without names in the config the classes are those of all rows, also of the evaluation's
    assert looked(tmp_path, rows, "classification", other, num_labels=3) == []
    assert looked(tmp_path, rows, "classification", rows, num_labels=3) == [("data.classes", "bad, good")]


CHAT, PLAIN = {"instruction": "Say a", "output": "a"}, {"text": "plain"}


@pytest.mark.parametrize(
    ("rows", "data", "lmbda", "found"),
    [
        ([PLAIN] * 100, {}, 0.5, ["rows of plain text"]),
        ([PLAIN] * 100, {}, 0.0, []),
        ([CHAT] * 3, {"train_on": "all"}, 0.5, ["data.train_on: all"]),
        ([CHAT] * 3, {}, 0.5, []),
    ],
)
def test_rows_without_prompts_for_the_students_own_answers_are_found(
    rows: list[Any], data: dict[str, Any], lmbda: float, found: list[str], tmp_path: Path
) -> None:
    options = {"teacher_model": "org/teacher", "lmbda": lmbda}
    seen = looked(tmp_path, rows, "distillation", data=data, **options)
    assert seen == [("training.no_prompts", text) for text in found]
