"""Rows for what learns from judged answers: pairs, labelled answers, prompts and texts with their classes."""

from __future__ import annotations

import random
from collections.abc import Sequence

Row = tuple[str, str, str]  # instruction, input, output
THINGS = ("tea", "soup", "chair", "lamp", "coat", "boat", "song", "garden", "clock", "bridge")
WORDS_OF_CLASS = {
    "good": ("wonderful", "bright", "comfortable", "lovely", "excellent"),
    "fair": ("ordinary", "usual", "plain", "average", "acceptable"),
    "bad": ("terrible", "broken", "awful", "useless", "dull"),
}
FRAMES = (
    "The {thing} was {word}.",
    "I find this {thing} {word}.",
    "My {thing} is {word}.",
    "This {thing}? Simply {word}.",
)


def question(row: Row) -> str:
    """A row's instruction with its input."""
    return f"{row[0]}\n{row[1]}" if row[1] else row[0]


def pairs(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The right answer, and one of the same kind of question that is wrong here."""
    rng = random.Random(11)
    return [{"prompt": question(row), "chosen": row[2], "rejected": wrong(row, rows, rng)} for row in rows]


def feedback(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Answers one by one with a label, two wrong ones to each right one."""
    rng = random.Random(12)
    return [
        {
            "prompt": question(row),
            "completion": row[2] if n % 3 == 0 else wrong(row, rows, rng),
            "label": n % 3 == 0,
        }
        for n, row in enumerate(rows)
    ]


def prompts(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Questions for rollouts, with the answer that rewards compare."""
    return [{"prompt": question(row), "answer": row[2]} for row in rows]


def reviews() -> list[dict[str, str]]:
    """Every thing with every word in a frame of its own, and the class that the word gives it."""
    rng = random.Random(13)
    texts = [
        {"text": rng.choice(FRAMES).format(thing=thing, word=word), "label": label}
        for label, words in WORDS_OF_CLASS.items()
        for word in words
        for thing in THINGS
    ]
    rng.shuffle(texts)
    return texts


def wrong(row: Row, rows: Sequence[Row], rng: random.Random) -> str:
    """Another answer of the same kind."""
    kind = row[0].split()[0]
    others = [other[2] for other in rows if other[0].split()[0] == kind and other[2] != row[2]]
    return rng.choice(others)
