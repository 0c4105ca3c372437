"""The demo's task: letter puzzles in plain English, made with a seed, with answers that a program can check.

Every question asks for a new string made from the letters of one made-up or real word: backwards, in capitals, or each letter moved one step
forward in the alphabet. The answer is never a part of the prompt, and guessing is hopeless: with three letters or more there are
thousands of answers. Words asked about in the held-out questions occur in no training question of any kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnprstvwyz"
MIN_LETTERS, MAX_LETTERS = 3, 5
ODD_LETTER = 0.25  # share of letters drawn from the whole alphabet, so that x, q and odd pairs occur too


def backwards(word: str) -> str:
    """``lemon`` → ``nomel``."""
    return word[::-1]


def capitals(word: str) -> str:
    """``lemon`` → ``LEMON``."""
    return word.upper()


def next_letters(word: str) -> str:
    """``lemon`` → ``mfnpo``; ``z`` goes on with ``a``."""
    return "".join(LETTERS[(LETTERS.index(c) + 1) % len(LETTERS)] for c in word)


@dataclass(frozen=True)
class Kind:
    """One sort of question: its wordings (``{}`` is the word) and the function that knows the answer."""

    name: str
    solve: Callable[[str], str]
    wordings: tuple[str, ...]


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "backwards",
            backwards,
            ("Spell '{}' backwards.", "Write the word '{}' in reverse.", "What is '{}' when read from right to left?"),
        ),
        Kind(
            "capitals",
            capitals,
            ("Write '{}' in capital letters.", "Put the word '{}' in upper case.", "How does '{}' look in capitals?"),
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

# Real words, asked only in held-out questions: a person can judge the answers at a glance.
REAL_WORDS = (  # noqa: SIM905 - a list of forty strings reads worse
    "apple bread cloud dance eagle flame grape house ink juice kite lemon mouse north ocean piano queen river stone tiger uncle "
    "voice water young zebra bird cake dog fish gold hat jam king lamp moon nest oak pear rain ship tree wolf year"
).split()


@dataclass(frozen=True)
class Question:
    """A prompt with its only right answer; ``word`` is what it asks about."""

    kind: str
    word: str
    prompt: str
    answer: str


def made_up_word(rng: random.Random) -> str:
    """A word of 3 to 5 letters that can mostly be pronounced: consonants and vowels take turns."""
    length = rng.randint(MIN_LETTERS, MAX_LETTERS)
    vowel_first = rng.random() < 0.5
    letters = []
    for i in range(length):
        if rng.random() < ODD_LETTER:
            letters.append(rng.choice(LETTERS))
        else:
            letters.append(rng.choice(VOWELS if (i % 2 == 0) == vowel_first else CONSONANTS))
    return "".join(letters)


def ask(kind: Kind, word: str, rng: random.Random) -> Question | None:
    """A question about ``word``, or None where the answer would stand in the prompt (``bob`` backwards)."""
    prompt, answer = rng.choice(kind.wordings).format(word), kind.solve(word)
    return None if answer in prompt else Question(kind.name, word, prompt, answer)


def held_out(seed: int, count: int) -> list[Question]:
    """``count`` different questions, about half on real words, the kinds in turn."""
    rng = random.Random(f"held-out {seed}")
    real = rng.sample(REAL_WORDS, len(REAL_WORDS))
    kinds = list(KINDS.values())
    questions: list[Question] = []
    used: set[str] = set()
    while len(questions) < count:
        word = real.pop() if real else made_up_word(rng)
        question = ask(kinds[len(questions) % len(kinds)], word, rng)
        if question is not None and word not in used:
            used.add(word)
            questions.append(question)
    return questions


def training(seed: int, count: int, forbidden_words: set[str]) -> list[Question]:
    """``count`` questions, none about a forbidden word; a prompt may come again, as it may in real data."""
    rng = random.Random(f"training {seed}")
    kinds = list(KINDS.values())
    questions: list[Question] = []
    while len(questions) < count:
        question = ask(rng.choice(kinds), made_up_word(rng), rng)
        if question is not None and question.word not in forbidden_words:
            questions.append(question)
    return questions
