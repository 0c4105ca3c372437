"""The demo's task: answers that can be checked, held-out words never seen, no answer in a prompt, no luck."""

from __future__ import annotations

from collections import Counter

import pytest

from paceline.demo.questions import (
    KINDS,
    MAX_LETTERS,
    REAL_WORDS,
    held_out,
    make_question,
    training,
)


@pytest.mark.parametrize(
    ("kind", "word", "answer"),
    [("backwards", "lemon", "nomel"), ("capitals", "lemon", "LEMON"), ("next letters", "zebra", "afcsb")],
)
def test_every_kind_knows_its_answer(kind: str, word: str, answer: str) -> None:
    assert KINDS[kind].solve(word) == answer


def test_held_out_words_occur_in_no_training_question() -> None:
    asked = held_out(7, 240)
    words = {q.word for q in asked}
    learnt = training(7, 5000, words)
    assert not words & {q.word for q in learnt}
    assert not {q.prompt for q in asked} & {q.prompt for q in learnt}
    assert len(words) == len(asked) == 240


def test_no_answer_stands_in_its_prompt() -> None:
    for q in [*held_out(3, 300), *training(3, 3000, set())]:
        assert q.answer not in q.prompt, q


def test_a_palindrome_is_not_asked_backwards() -> None:
    import random

    assert make_question(KINDS["backwards"], "level", random.Random(0)) is None
    assert KINDS["backwards"].solve("level") == "level"


def test_guessing_the_commonest_answer_stays_below_two_percent() -> None:
    """A model that ignores the word can be right at most as often as the commonest answer of a kind comes."""
    for kind in KINDS:
        answers = Counter(q.answer for q in training(1, 9000, set()) if q.kind == kind)
        assert answers.most_common(1)[0][1] / answers.total() < 0.02


def test_the_seed_decides_everything() -> None:
    assert held_out(5, 50) == held_out(5, 50) != held_out(6, 50)
    assert training(5, 50, set()) == training(5, 50, set()) != training(6, 50, set())


def test_kinds_are_balanced_and_real_words_are_as_long_as_the_made_up_ones() -> None:
    assert set(Counter(q.kind for q in held_out(0, 240)).values()) == {80}
    assert len(REAL_WORDS) == len(set(REAL_WORDS))
    assert max(map(len, REAL_WORDS)) <= MAX_LETTERS
    assert KINDS["next letters"].solve("xyz") == "yza"
