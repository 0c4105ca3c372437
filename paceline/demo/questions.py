"""The demo's task: letter puzzles in plain English, generated from a seed, with checkable answers.

Every question asks for a new string made from the letters of one made-up or real word: backwards, in
capitals, or each letter moved one step forward in the alphabet. The answer is never part of the prompt, and
guessing is hopeless: with three letters or more there are thousands of answers. Words of the held-out
questions occur in no training question.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnprstvwyz"
MIN_LETTERS, MAX_LETTERS = 3, 5
ODD_LETTER = 0.25  # fraction of letters drawn from the full alphabet, so that x, q and odd pairs occur too


def backwards(word: str) -> str:
    """Return ``nomel`` for ``lemon``."""
    return word[::-1]


def capitals(word: str) -> str:
    """Return ``LEMON`` for ``lemon``."""
    return word.upper()


def next_letters(word: str) -> str:
    """Return ``mfnpo`` for ``lemon``; ``z`` becomes ``a``."""
    return "".join(LETTERS[(LETTERS.index(c) + 1) % len(LETTERS)] for c in word)


@dataclass(frozen=True)
class Kind:
    """A kind of question: its wordings (``{}`` is the word) and the function that computes the answer."""

    name: str
    solve: Callable[[str], str]
    wordings: tuple[str, ...]


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "backwards",
            backwards,
            (
                "Spell '{}' backwards.",
                "Write the word '{}' in reverse.",
                "What is '{}' when read from right to left?",
            ),
        ),
        Kind(
            "capitals",
            capitals,
            (
                "Write '{}' in capital letters.",
                "Put the word '{}' in upper case.",
                "How does '{}' look in capitals?",
            ),
        ),
        Kind(
            "next letters",
            next_letters,
            (
                "Move each letter of '{}' one step forward in the alphabet.",
                "Replace every letter of '{}' by the next letter.",
                "Which letters follow those of '{}'?",
            ),
        ),
    )
}

# Real words, used only in held-out questions: a person can judge the answers at a glance.
REAL_WORDS = (  # noqa: SIM905 - a list of forty strings reads worse
    "apple bread cloud dance eagle flame grape house ink juice kite lemon mouse north ocean piano queen river"
    " stone tiger uncle voice water young zebra bird cake dog fish gold hat jam king lamp moon nest oak pear"
    " rain ship tree wolf year"
).split()


@dataclass(frozen=True)
class Question:
    """A prompt with its only right answer; ``word`` is the word that it asks about."""

    kind: str
    word: str
    prompt: str
    answer: str


def made_up_word(rng: random.Random) -> str:
    """Return a mostly pronounceable word of 3 to 5 letters: consonants and vowels alternate."""
    length = rng.randint(MIN_LETTERS, MAX_LETTERS)
    vowel_first = rng.random() < 0.5
    letters = []
    for i in range(length):
        if rng.random() < ODD_LETTER:
            letters.append(rng.choice(LETTERS))
        else:
            letters.append(rng.choice(VOWELS if (i % 2 == 0) == vowel_first else CONSONANTS))
    return "".join(letters)


def make_question(kind: Kind, word: str, rng: random.Random) -> Question | None:
    """Return a question about ``word``, or None if the prompt would contain the answer (``bob``)."""
    prompt, answer = rng.choice(kind.wordings).format(word), kind.solve(word)
    return None if answer in prompt else Question(kind.name, word, prompt, answer)


def held_out(seed: int, count: int) -> list[Question]:
    """Return ``count`` different questions, about half of them on real words, cycling through the kinds."""
    rng = random.Random(f"held-out {seed}")
    real = rng.sample(REAL_WORDS, len(REAL_WORDS))
    kinds = list(KINDS.values())
    questions: list[Question] = []
    used: set[str] = set()
    while len(questions) < count:
        word = real.pop() if real else made_up_word(rng)
        question = make_question(kinds[len(questions) % len(kinds)], word, rng)
        if question is not None and word not in used:
            used.add(word)
            questions.append(question)
    return questions


def training(seed: int, count: int, forbidden_words: set[str]) -> list[Question]:
    """Return ``count`` questions without forbidden words; prompts may repeat, as in real data."""
    rng = random.Random(f"training {seed}")
    kinds = list(KINDS.values())
    questions: list[Question] = []
    while len(questions) < count:
        question = make_question(rng.choice(kinds), made_up_word(rng), rng)
        if question is not None and question.word not in forbidden_words:
            questions.append(question)
    return questions
