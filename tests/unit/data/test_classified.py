"""Rows with classes: read as they stand, their classes by the config or the data, what is wrong named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from data_fixtures import make_tokenizer, prepared_from, write_jsonl
from transformers import AutoTokenizer

from paceline.config.sections.algorithms.supervised import ClassificationOptions
from paceline.config.sections.training import TrainingSection
from paceline.core.errors import DataError
from paceline.data.packed_source import PackedSource
from paceline.data.rows.kinds.classified import CLASSIFIED, TEXT_PAIRS
from paceline.data.rows.values import RowError
from paceline.models.special_tokens import SECOND
from paceline.plan.algorithms.supervised import CLASSIFICATION
from paceline.training.preflight.class_counts import class_numbers, empty_classes
from paceline.training.run.class_labels import RowClasses, read_classes


def classes_of(rows: list[Any], held_out: list[Any] | None = None, **options: Any) -> RowClasses:
    """Of labels alone."""

    def table(labels: list[Any]) -> Any:
        facts = [
            {"labels": x if isinstance(x, list) else [x], "several": isinstance(x, list)} for x in labels
        ]
        return SimpleNamespace(lengths=facts, facts=facts.__getitem__)

    prepared: Any = SimpleNamespace(train=table(rows), eval=None if held_out is None else table(held_out))
    return read_classes(
        prepared, CLASSIFICATION, TrainingSection(classification=ClassificationOptions(**options))
    )


def test_names_are_numbered_in_their_order_and_numbers_stay() -> None:
    found = classes_of(["b", "a", "b"], ["c"])
    assert found.classes.names == ("a", "b", "c") and not found.classes.several
    assert found.columns["train"]["label"].tolist() == [1, 0, 1] and found.columns["eval"][
        "label"
    ].tolist() == [2]
    found = classes_of([2, 0, "1"])
    assert found.classes.names == ("LABEL_0", "LABEL_1", "LABEL_2") and found.columns["train"][
        "label"
    ].tolist() == [2, 0, 1]
    assert classes_of([1, 0], num_labels=4).classes.names == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")


def test_the_config_names_them() -> None:
    found = classes_of(["good", 0, "bad"], labels=("bad", "good"))
    assert found.classes.names == ("bad", "good") and found.columns["train"]["label"].tolist() == [1, 0, 0]


@pytest.mark.parametrize("labels", [[1, 2], ["1", "2"], [0, 100_000], [0, 1, 3], ["007", "3"], [[5], []]])
def test_numbers_with_gaps_are_warned_of_with_the_line_that_names_them(labels: list[Any]) -> None:
    rows = [x if isinstance(x, list) else [x] for x in labels]
    found = {x for row in rows for x in row}
    (said,) = empty_classes(rows, ClassificationOptions(), "labels")
    count = max(map(int, found)) + 1
    assert f"{count:,} classes" in said.what and f"num_labels: {count}" in said.hint
    assert f"; {count - len(found):,} of them without a row" in classes_of(labels).words
    # Either line is taken, and ends the warning
    named = yaml.safe_load(said.hint.partition(" makes")[0])["labels"]
    options = ClassificationOptions(labels=tuple(named))
    assert class_numbers(rows, options, "") and not [*empty_classes(rows, options, "")]
    kept = ClassificationOptions(num_labels=count)
    assert class_numbers(rows, kept, "") and not [*empty_classes(rows, kept, "")]


def test_numbers_without_gaps_and_names_are_not_warned_of() -> None:
    for rows in ([[0], [1]], [["1"], [0]], [["a"], ["c"]], [[]]):
        assert not [*empty_classes(rows, ClassificationOptions(), "")]
    assert not [*empty_classes([[1]], ClassificationOptions(), "", all_rows=False)]  # further rows may follow
    assert [*empty_classes([[9]], ClassificationOptions(), "", all_rows=False)]


def test_a_number_is_a_name_where_names_are_numbers() -> None:
    assert classes_of([1, 2, "2"], labels=("1", "2")).columns["train"]["label"].tolist() == [0, 1, 1]
    assert classes_of([0, 1], labels=("1", "0")).columns["train"]["label"].tolist() == [1, 0]
    with pytest.raises(DataError, match="does not list"):
        classes_of([0, 1], labels=("1", "2"))


def test_lists_are_several_classes_or_none() -> None:
    found = classes_of([["b", "a"], [], ["c"]])
    assert found.classes.several
    assert found.columns["train"]["label"].tolist() == [
        [True, True, False],
        [False] * 3,
        [False, False, True],
    ]
    alone = classes_of([["b"], ["a"]], problem_type="single_label_classification")
    assert not alone.classes.several and alone.columns["train"]["label"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (["a", "z"], {"labels": ("a", "b")}, "does not list"),
        ([0, 5], {"num_labels": 3}, "beyond num_labels"),
        (["a", "b"], {"num_labels": 3}, "num_labels is 3"),
        (["a", "a"], {}, "the same class"),
        (["a", 1], {}, "some rows give class names, others class numbers"),
        ([["a", "b"], []], {"problem_type": "single_label_classification"}, "several classes, or none"),
    ],
)
def test_labels_that_are_no_classes_are_refused(rows: list[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said) as error:
        classes_of(rows, **options)
    assert error.value.diagnostics[0].code == "data.classes"


@pytest.mark.parametrize("label", [None, "", 1.5, -1, {"a": 1}, [None]])
def test_a_row_without_a_class_is_named(label: Any) -> None:
    row = {"text": "hello", "label": label}
    with pytest.raises(RowError) as error:
        CLASSIFIED.normalise(row, CLASSIFIED.detect([row], where="f"))
    assert error.value.reason == "no_class"


@pytest.mark.parametrize(
    ("row", "mapping"),
    [
        ({"text": "a"}, {}),
        ({"label": 1}, {}),
        ({"text": "a", "review": "b", "label": 1}, {}),
        ({"text": "a", "label": 1}, {"text": "x"}),
        ({"premise": "a", "hypothesis": "b", "sentence1": "c", "sentence2": "d", "label": 1}, {}),
        ({"text": [{"role": "user", "content": "a"}], "text_pair": "b", "label": 1}, {}),
    ],
)
def test_rows_of_another_shape_are_refused(row: dict[str, Any], mapping: dict[str, str]) -> None:
    with pytest.raises(DataError) as error:
        CLASSIFIED.detect([row], where="f", mapping=mapping)
    assert error.value.diagnostics[0].code == "data.format_classes"


def test_a_text_is_coded_as_the_tokenizer_alone_codes_it(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    turns = [{"role": "user", "content": "how do you do"}, {"role": "assistant", "content": "well"}]
    rows = [{"text": "one two three", "label": "x"}, {"text": "two", "label": "y"}]
    prepared = prepared_from(
        write_jsonl(tmp_path / "rows.jsonl", rows), tokenizer, tmp_path, rows="classified"
    )
    plain: Any = AutoTokenizer.from_pretrained(tokenizer)
    found = [prepared.train.row(i) for i in range(2)]
    assert [ids.tolist() for ids, _ in found] == [plain(row["text"])["input_ids"] for row in rows]
    assert all((labels < 0).all() for _, labels in found) and prepared.train.num_labels.tolist() == [0, 0]
    source = PackedSource(prepared.train, seq_len=64, packing=True, seed=0, pad_token_id=0, shuffle=False)
    source.columns["label"] = np.array([[True, False], [True, True]])
    batch = source.batch(0, [0, -1])
    assert batch.extras["label"].tolist()[-1] == [0.0, 0.0] and batch.extras["label"].shape == (3, 2)
    (told,) = CLASSIFIED.normalise(
        {"messages": turns, "label": 1}, CLASSIFIED.detect([{"messages": turns, "label": 1}], where="f")
    )
    assert told.messages == tuple(turns)


def encoder_tokenizer(folder: Path, types: bool) -> Path:
    """The bytes' tokenizer with BERT's marks around texts, or RoBERTa's, which tell no types."""
    from tokenizers.processors import TemplateProcessing

    tokenizer: Any = AutoTokenizer.from_pretrained(make_tokenizer(folder))
    pair = "<|im_start|> $A <|im_end|> $B:1 <|im_end|>:1"
    ids = [(mark, tokenizer.convert_tokens_to_ids(mark)) for mark in ("<|im_start|>", "<|im_end|>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        pair=pair if types else pair.replace(":1", ""),
        special_tokens=ids,
    )
    tokenizer.model_input_names = ["input_ids", *["token_type_ids"] * types, "attention_mask"]
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("types", [True, False], ids=["BERT's", "RoBERTa's"])
@pytest.mark.parametrize("names", TEXT_PAIRS[:4], ids=" ".join)
def test_two_texts_are_coded_and_cut_as_the_tokenizer_does(
    names: tuple[str, str], types: bool, tmp_path: Path
) -> None:
    folder = encoder_tokenizer(tmp_path / "tokenizer", types)
    texts = [
        ("short", "words"),
        ("a long first text", "b"),
        ("c", "a long second text"),
        ("both of", "them long"),
    ]
    rows = [dict(zip(names, pair, strict=True)) | {"label": i % 2} for i, pair in enumerate(texts)]
    prepared = prepared_from(
        write_jsonl(tmp_path / "rows.jsonl", rows), folder, tmp_path, rows="classified", max_length=14
    )
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    for i, (one, other) in enumerate(texts):
        wanted = theirs(one, other, truncation="longest_first", max_length=14)
        assert prepared.train.row(i)[0].tolist() == wanted["input_ids"]
        begins, length = int(prepared.train.columns[SECOND][i]), len(wanted["input_ids"])
        found = [int(0 < begins <= place) for place in range(length)]
        assert found == wanted.get("token_type_ids", [0] * length)


@pytest.mark.parametrize("label", [[1.0, 0.0], [1.0, 0.0, 1.0], [1, 0, 1], [0, 0]])
def test_a_vector_of_flags_is_no_list_of_classes(label: list[float]) -> None:
    """Transformers' multi-label form; the classes 0 and 1 may be listed."""
    row = {"text": "a", "label": label}
    with pytest.raises(RowError, match="class_vector"):
        CLASSIFIED.normalise(row, CLASSIFIED.detect([row], where="f"))
    listed = {"text": "a", "label": [1, 0]}
    assert CLASSIFIED.normalise(listed, CLASSIFIED.detect([listed], where="f"))
