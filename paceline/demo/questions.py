"""The demo's task: letter puzzles in plain English, generated from a seed, with checkable answers.

Every question asks for a new string made from the letters of one made-up or real word. The answer is the word
backwards, in capitals, or with each letter moved one step forward in the alphabet. The answer is never part
of the prompt, and guessing is hopeless: with three letters or more there are thousands of answers. Words of
the held-out questions occur in no training question.

The wrong answer of a preference pair is as long as the right one: only its letters tell them apart.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnprstvwyz"
MIN_LETTERS, MAX_LETTERS = 3, 5  # short enough for a small model
ODD_LETTER = 0.25  # fraction of letters drawn from the full alphabet, so that x, q and odd pairs occur too


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
            lambda word: word[::-1],
            (
                "Spell '{}' backwards.",
                "Write the word '{}' in reverse.",
                "What is '{}' when read from right to left?",
            ),
        ),
        Kind(
            "capitals",
            str.upper,
            (
                "Write '{}' in capital letters.",
                "Put the word '{}' in upper case.",
                "How does '{}' look in capitals?",
            ),
        ),
        Kind(
            "next letters",
            lambda word: "".join(LETTERS[(LETTERS.index(c) + 1) % len(LETTERS)] for c in word),
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
    kinds = [VOWELS if (i % 2 == 0) == vowel_first else CONSONANTS for i in range(length)]
    return "".join(rng.choice(LETTERS if rng.random() < ODD_LETTER else letters) for letters in kinds)


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


@dataclass(frozen=True)
class Pair:
    """``chosen`` answers ``prompt``; ``rejected`` has the same length and is wrong."""

    prompt: str
    chosen: str
    rejected: str


def swap_letters(answer: str, rng: random.Random) -> str:
    """Swap two adjacent letters: ``nomel`` → ``nmoel``; the answer itself if all letters are equal."""
    i = _differing(answer, rng)
    return answer if i is None else answer[:i] + answer[i + 1] + answer[i] + answer[i + 2 :]


def replaced(answer: str, rng: random.Random) -> str:
    """Replace one letter by another of the same case: ``nomel`` → ``nomal``."""
    i = rng.randrange(len(answer))
    letters = LETTERS.upper() if answer[i].isupper() else LETTERS
    return answer[:i] + rng.choice(letters.replace(answer[i], "")) + answer[i + 1 :]


def stuttered(answer: str, rng: random.Random) -> str:
    """Overwrite one letter by the one before it: ``nomel`` → ``nooel``; equal letters stay."""
    i = _differing(answer, rng)
    return answer if i is None else answer[: i + 1] + answer[i] + answer[i + 2 :]


def _differing(answer: str, rng: random.Random) -> int | None:
    """Return the index of a letter that differs from the next one; None if there is none."""
    indices = [i for i in range(len(answer) - 1) if answer[i] != answer[i + 1]]
    return rng.choice(indices) if indices else None


SPOILED: Sequence[Callable[[str, random.Random], str]] = (swap_letters, replaced, stuttered)


def pairs_of(questions: Iterable[Question], seed: int) -> list[Pair]:
    """Return one pair per question, with random kinds of mistakes."""
    rng = random.Random(f"pairs {seed}")
    pairs = []
    for question in questions:
        wrong = rng.choice(SPOILED)(question.answer, rng)
        while wrong == question.answer:
            wrong = replaced(question.answer, rng)
        pairs.append(Pair(question.prompt, question.answer, wrong))
    return pairs


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write one JSON object per line: ``prompt``, ``chosen``, ``rejected``."""
    path.write_text("".join(json.dumps(asdict(pair)) + "\n" for pair in pairs), encoding="utf-8")
