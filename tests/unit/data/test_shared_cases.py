"""The inputs of ``../shared/cases/turn3`` about data have the values of its README, where they are here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.config.sections.data import DataSection
from paceline.core.errors import DataError
from paceline.data.preflight.check_sets import first_examples
from paceline.data.rows.examples import Reading
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.base import row_kind
from paceline.plan.algorithms.spec import algorithm_spec

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases" / "turn3"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="../shared is not here")


def examples_of(place: str, algorithm: str = "sft", **section: Any) -> list[Example]:
    """All rows of a case, read for ``algorithm``."""
    kind = row_kind(algorithm_spec(algorithm).rows)
    data = DataSection(train=({"path": str(CASES / place), **section},))
    found = first_examples(data, Reading("assistant", kind), "data.train")
    assert found.whole and found.everywhere
    return found.examples


def turns(example: Example) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in example.messages]


@pytest.mark.parametrize(
    ("place", "section", "count"),
    [("folders/holdout", {}, 3), ("folders/gsm8k", {"name": "main"}, 4), ("formats/a.jsonl.gz", {}, 3)],
)
def test_folders_and_files(place: str, section: dict[str, Any], count: int) -> None:
    assert len(examples_of(place, **section)) == count


def test_a_folder_of_two_configurations_asks_which() -> None:
    with pytest.raises(DataError, match=r"data\.config_name"):
        examples_of("folders/gsm8k")


@pytest.mark.parametrize("algorithm", ["dpo", "reward"])
def test_texts_without_a_prompt_begin_alike(algorithm: str) -> None:
    answers = [example.text[example.begin :] for example in examples_of("formats/hh.jsonl", algorithm)]
    assert answers == [" Four.", " Fortytwo.", " Hello there", " Go away"]


def test_role_names_of_sharegpt() -> None:
    assert turns(examples_of("formats/hum.jsonl")[0]) == [("user", "q"), ("assistant", "a")]


def test_a_column_of_turns_that_holds_the_answer_is_no_prompt() -> None:
    for number, example in enumerate(examples_of("pairs/uf.jsonl", "dpo")):
        word = "bad" if number % 2 else "good"
        assert turns(example) == [
            ("user", f"Question {number // 2}?"),
            ("assistant", f"{word} {number // 2}"),
        ]
    assert [turns(e) for e in examples_of("pairs/kto.jsonl", "kto")] == [
        [("user", "q"), ("assistant", "g")],
        [("user", "q2"), ("assistant", "b")],
    ]


def test_the_first_question_as_prompt_changes_nothing() -> None:
    with_prompt, without = (examples_of(f"multi_turn/{name}.jsonl", "dpo") for name in "ab")
    assert with_prompt == without and {e.learn_from for e in without} == {3}
