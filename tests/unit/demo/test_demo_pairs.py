"""The demo's preference pairs: really wrong, as long as the right answer, and about other words than those
held out.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from paceline.demo.files import Material
from paceline.demo.questions import (
    KINDS,
    SPOILED,
    Question,
    held_out,
    pairs_of,
    replaced,
    stuttered,
    swap_letters,
    training,
)
from paceline.demo.recipes import lay_pairs
from paceline.demo.steps import HalfWay


def test_the_wrong_answer_is_wrong_and_as_long_as_the_right_one() -> None:
    questions = training(3, 2000, set())
    pairs = pairs_of(questions, 3)
    assert [p.prompt for p in pairs] == [q.prompt for q in questions]
    for q, pair in zip(questions, pairs, strict=True):
        assert pair.chosen == q.answer == KINDS[q.kind].solve(q.word)
        assert pair.rejected != pair.chosen and len(pair.rejected) == len(pair.chosen)
        assert pair.rejected.isupper() == pair.chosen.isupper(), "the case gives nothing away"


@pytest.mark.parametrize(("spoil", "found"), [(swap_letters, {"ba", "ab"}), (stuttered, {"aa"})])
def test_mistakes_keep_to_the_letters(spoil: object, found: set[str]) -> None:
    assert spoil("ab", random.Random(0)) in found  # type: ignore[operator]
    assert spoil("aaa", random.Random(0)) == "aaa", "nothing to exchange"  # type: ignore[operator]


def test_a_word_of_one_letter_is_spoiled_by_another_letter() -> None:
    pair = pairs_of([Question("backwards", "aaa", "?", "aaa")] * 30, 1)
    assert all(sum(a != b for a, b in zip("aaa", p.rejected, strict=True)) == 1 for p in pair)
    assert replaced("A", random.Random(0)).isupper()


def test_every_mistake_comes_and_the_seed_decides() -> None:
    questions = training(5, 200, set())
    assert pairs_of(questions, 1) == pairs_of(questions, 1) != pairs_of(questions, 2)
    assert len(SPOILED) == 3


def test_held_out_words_occur_in_no_training_pair(tmp_path: Path) -> None:
    asked = tuple(held_out(7, 60))
    lay_pairs(tmp_path, HalfWay(Material(tmp_path, asked), tmp_path, 0.4, {}), 7, count=800)

    def rows(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (tmp_path / "material" / name).read_text().splitlines()]

    learnt, tested = rows("pairs.jsonl"), rows("held_out_pairs.jsonl")
    assert [t["prompt"] for t in tested] == [q.prompt for q in asked] * 3 and len(learnt) == 800
    words = {f"'{q.word}'" for q in asked}
    assert not [row for row in learnt if any(word in row["prompt"] for word in words)]
    assert not {t["prompt"] for t in tested} & {row["prompt"] for row in learnt}
