"""Preference pairs of the letter puzzles: the right answer, and a wrong one of the same length.

Only looking at the letters tells them apart.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.demo.questions import LETTERS, Question


@dataclass(frozen=True)
class Pair:
    """``chosen`` answers ``prompt``; ``rejected`` has the same length and is wrong."""

    prompt: str
    chosen: str
    rejected: str


def swap_letters(answer: str, rng: random.Random) -> str:
    """Swap two adjacent letters: ``nomel`` → ``nmoel``; the answer itself if all letters are equal."""
    places = [i for i in range(len(answer) - 1) if answer[i] != answer[i + 1]]
    if not places:
        return answer
    i = rng.choice(places)
    return answer[:i] + answer[i + 1] + answer[i] + answer[i + 2 :]


def replaced(answer: str, rng: random.Random) -> str:
    """Replace one letter by another of the same case: ``nomel`` → ``nomal``."""
    i = rng.randrange(len(answer))
    letters = LETTERS.upper() if answer[i].isupper() else LETTERS
    return answer[:i] + rng.choice(letters.replace(answer[i], "")) + answer[i + 1 :]


def stuttered(answer: str, rng: random.Random) -> str:
    """Overwrite one letter by the one before it: ``nomel`` → ``nooel``.

    The answer itself if all are equal.
    """
    places = [i for i in range(len(answer) - 1) if answer[i] != answer[i + 1]]
    if not places:
        return answer
    i = rng.choice(places)
    return answer[: i + 1] + answer[i] + answer[i + 2 :]


SPOILED: Sequence[Callable[[str, random.Random], str]] = (swap_letters, replaced, stuttered)


def pairs_of(questions: Iterable[Question], seed: int) -> list[Pair]:
    """Return one pair per question, with random kinds of mistakes."""
    rng = random.Random(f"pairs {seed}")
    found = []
    for q in questions:
        wrong = rng.choice(SPOILED)(q.answer, rng)
        while wrong == q.answer:
            wrong = replaced(q.answer, rng)
        found.append(Pair(q.prompt, q.answer, wrong))
    return found


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write one JSON object per line: ``prompt``, ``chosen``, ``rejected``."""
    with path.open("w", encoding="utf-8") as file:
        for pair in pairs:
            file.write(
                json.dumps({"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}) + "\n"
            )
