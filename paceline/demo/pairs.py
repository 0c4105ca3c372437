"""Preference pairs of the letter puzzles: the right answer, and a wrong one of the same length, which only looking at the letters tells apart."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.demo.questions import LETTERS, Question


@dataclass(frozen=True)
class Pair:
    """``chosen`` answers ``prompt``, ``rejected`` is as long and does not."""

    prompt: str
    chosen: str
    rejected: str


def swapped(answer: str, rng: random.Random) -> str:
    """Two letters beside each other in the other order: ``nomel`` → ``nmoel``; the answer itself where all are the same."""
    places = [i for i in range(len(answer) - 1) if answer[i] != answer[i + 1]]
    if not places:
        return answer
    i = rng.choice(places)
    return answer[:i] + answer[i + 1] + answer[i] + answer[i + 2 :]


def replaced(answer: str, rng: random.Random) -> str:
    """One letter is another one, of the same case: ``nomel`` → ``nomal``."""
    i = rng.randrange(len(answer))
    letters = LETTERS.upper() if answer[i].isupper() else LETTERS
    return answer[:i] + rng.choice(letters.replace(answer[i], "")) + answer[i + 1 :]


def stuttered(answer: str, rng: random.Random) -> str:
    """One letter in the place of the one behind it, too: ``nomel`` → ``nooel``; the answer itself where all are the same."""
    places = [i for i in range(len(answer) - 1) if answer[i] != answer[i + 1]]
    if not places:
        return answer
    i = rng.choice(places)
    return answer[: i + 1] + answer[i] + answer[i + 2 :]


SPOILED: Sequence[Callable[[str, random.Random], str]] = (swapped, replaced, stuttered)


def pairs_of(questions: Iterable[Question], seed: int) -> list[Pair]:
    """One pair a question, the kinds of mistake at random."""
    rng = random.Random(f"pairs {seed}")
    found = []
    for q in questions:
        wrong = rng.choice(SPOILED)(q.answer, rng)
        while wrong == q.answer:
            wrong = replaced(q.answer, rng)
        found.append(Pair(q.prompt, q.answer, wrong))
    return found


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """One JSON object a line: ``prompt``, ``chosen``, ``rejected``."""
    with path.open("w", encoding="utf-8") as file:
        for pair in pairs:
            file.write(json.dumps({"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}) + "\n")
