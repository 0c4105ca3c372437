"""The known name that a written one most likely means: a slip of the pen, or the same words otherwise put. Better none than a wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

# One word a line as programs shorten and vary it; a plural is its singular.
_WORDS = {
    "grad": "gradient", "grads": "gradient", "acc": "accumulation", "accum": "accumulation", "accumulate": "accumulation", "ckpt": "checkpoint",
    "checkpointing": "checkpoint", "n": "num", "number": "num", "evaluation": "eval", "evaluate": "eval", "val": "eval", "validation": "eval",
    "training": "train", "gpu": "device", "opt": "optim", "optimizer": "optim", "optimiser": "optim", "log": "logging", "len": "length",
    "maximum": "max", "minimum": "min", "directory": "dir", "folder": "dir", "dist": "distributed", "attn": "attention", "seq": "sequence",
    "bsz": "batch_size", "bs": "batch_size", "batchsize": "batch_size", "lr": "learning_rate", "sched": "scheduler", "param": "parameter", "proc": "process",
    "reg": "regularization", "temp": "temperature", "prob": "probability", "dl": "dataloader", "saving": "save", "clipping": "clip", "wd": "weight_decay",
}  # fmt: skip
MOST_UNKNOWN = 200  # unknown keys of one file that are named one by one; further ones are counted
_MOST_EDITS = 2  # of a long name; a short one has one
_LONG = 8
_FEWEST_LETTERS = 4  # of a name for which a slip can be told from another word


def nearest(written: str, known: Sequence[str]) -> list[str]:
    """The names of ``known`` that ``written`` most likely stands for: one, two where both are as near, or none."""
    index = _index(tuple(known))
    plain = _plain(written)
    if len(plain) < _FEWEST_LETTERS or len(plain) > 64:
        short = [name for name, text, _ in index.letters if text == plain or _one_letter_left_out(plain, text)]
        return short if len(short) == 1 else []
    same = index.words.get(_words(written), [])
    if len(same) == 1:
        return same
    letters = _letters(plain)
    best: list[str] = []
    least = _MOST_EDITS + 1
    for name, text, mask in index.letters:
        allowed = 1 if min(len(plain), len(text)) < _LONG else _MOST_EDITS
        if len(text) < _FEWEST_LETTERS or abs(len(text) - len(plain)) > allowed:
            continue
        if (mask ^ letters).bit_count() > 2 * allowed:
            continue
        distance = _edits(plain, text, allowed)
        if distance <= allowed and distance <= least:
            best = [*(best if distance == least else ()), name]
            least = distance
    return best if len(best) <= 2 else []


class _Index:
    def __init__(self, known: tuple[str, ...]) -> None:
        self.letters = [(name, _plain(name), _letters(_plain(name))) for name in known]
        self.words: dict[tuple[str, ...], list[str]] = {}
        for name in known:
            self.words.setdefault(_words(name), []).append(name)


@lru_cache(maxsize=64)
def _index(known: tuple[str, ...]) -> _Index:
    return _Index(known)


def _one_letter_left_out(short: str, whole: str) -> bool:
    """``rnk`` of ``rank``."""
    return len(short) == _FEWEST_LETTERS - 1 == len(whole) - 1 and _edits(short, whole, 1) == 1


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def _letters(text: str) -> int:
    """Which letters occur, as bits: an edit changes at most two of them."""
    found = 0
    for letter in text:
        found |= 1 << (ord(letter) & 63)
    return found


def _words(name: str) -> tuple[str, ...]:
    """The words of a name in their full form, sorted."""
    written = "".join(f"_{c.lower()}" if c.isupper() and i else c for i, c in enumerate(name)).replace("-", "_")
    whole = [_WORDS.get(w) or _WORDS.get(w.removesuffix("s")) or w for w in written.lower().split("_") if w]
    return tuple(sorted(w.removesuffix("s") for word in whole for w in word.split("_")))


def _edits(one: str, other: str, most: int) -> int:
    """Letters to add, remove, change or swap with their neighbour; ``most + 1`` where there are more than ``most``."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, theirs in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != theirs))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == theirs:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return min(row[-1], most + 1)
