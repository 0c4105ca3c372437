"""Find the known name that a misspelt or reworded one most likely means; prefer none over a wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

# Abbreviation or variant → the full word, in the singular.
_WORDS = {
    "grad": "gradient",
    "grads": "gradient",
    "acc": "accumulation",
    "accum": "accumulation",
    "accumulate": "accumulation",
    "ckpt": "checkpoint",
    "checkpointing": "checkpoint",
    "n": "num",
    "number": "num",
    "evaluation": "eval",
    "evaluate": "eval",
    "val": "eval",
    "validation": "eval",
    "training": "train",
    "gpu": "device",
    "opt": "optim",
    "optimizer": "optim",
    "optimiser": "optim",
    "log": "logging",
    "len": "length",
    "maximum": "max",
    "minimum": "min",
    "directory": "dir",
    "folder": "dir",
    "dist": "distributed",
    "attn": "attention",
    "seq": "sequence",
    "bsz": "batch_size",
    "bs": "batch_size",
    "batchsize": "batch_size",
    "lr": "learning_rate",
    "sched": "scheduler",
    "param": "parameter",
    "proc": "process",
    "reg": "regularization",
    "temp": "temperature",
    "prob": "probability",
    "dl": "dataloader",
    "saving": "save",
    "clipping": "clip",
    "wd": "weight_decay",
}
MOST_UNKNOWN = 200  # unknown keys of a file that are listed; further ones are only counted
_MOST_EDITS = 2  # for a long name; one edit for a short name
_LONG = 8
_FEWEST_LETTERS = 4  # of a name; in shorter ones a misspelling looks like another word


def nearest(written: str, names: Sequence[str], most_edits: int = _MOST_EDITS) -> list[str]:
    """Return the names of ``names`` that ``written`` most likely means: one, two equally near, or none.

    ``most_edits``: letters inserted, deleted, replaced or swapped, in a long name; in a short one always 1.
    """
    index = _index(tuple(names))
    plain = _plain(written)
    # Longer names than any key are no slips, and cost time
    if len(plain) < _FEWEST_LETTERS or len(plain) > 64:
        short = [
            name for name, text, _ in index.letters if text == plain or _one_letter_left_out(plain, text)
        ]
        return short if len(short) == 1 else []
    # The same words, abbreviated or in another order
    same = index.words.get(_words(written), [])
    if len(same) == 1:
        return same
    # The smallest edit distance; compare sets of letters first, which is cheap
    letters = _letters(plain)
    best: list[str] = []
    least = most_edits + 1
    for name, text, mask in index.letters:
        allowed = 1 if min(len(plain), len(text)) < _LONG else most_edits
        if len(text) < _FEWEST_LETTERS or abs(len(text) - len(plain)) > allowed:
            continue
        # Cheap: most names are ruled out before the edit distance
        if (mask ^ letters).bit_count() > 2 * allowed:
            continue
        distance = _edits(plain, text, allowed)
        if distance <= allowed and distance <= least:
            best = [*(best if distance == least else ()), name]
            least = distance
    # Three equally near names tell nothing
    return best if len(best) <= 2 else []


def did_you_mean(written: str, names: Sequence[str], otherwise: str = "remove it") -> str:
    """Return what to write instead of an unknown name: the nearest one, or ``otherwise``."""
    near = nearest(written, names)
    return f"did you mean '{near[0]}'?" if near else otherwise


class _Index:
    def __init__(self, names: tuple[str, ...]) -> None:
        self.letters = [(name, _plain(name), _letters(_plain(name))) for name in names]
        self.words: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            self.words.setdefault(_words(name), []).append(name)


@lru_cache(maxsize=64)
def _index(names: tuple[str, ...]) -> _Index:
    return _Index(names)


def _one_letter_left_out(short: str, full: str) -> bool:
    """Whether ``short`` is ``full`` without one letter, like ``rnk`` for ``rank``."""
    return len(short) == _FEWEST_LETTERS - 1 == len(full) - 1 and _edits(short, full, 1) == 1


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def _letters(text: str) -> int:
    """Return the set of letters as bits; one edit changes at most two of them."""
    bits = 0
    for letter in text:
        bits |= 1 << (ord(letter) & 63)
    return bits


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name, unabbreviated and sorted."""
    written = "".join(f"_{c.lower()}" if c.isupper() and i else c for i, c in enumerate(name)).replace(
        "-", "_"
    )
    words = [_WORDS.get(w) or _WORDS.get(w.removesuffix("s")) or w for w in written.lower().split("_") if w]
    return tuple(sorted(w.removesuffix("s") for word in words for w in word.split("_")))


def _edits(word: str, target: str, most: int) -> int:
    """Return the edit distance (insert, delete, replace, swap neighbours), at most ``most + 1``."""
    before: list[int] = []
    row = list(range(len(target) + 1))
    for i, letter in enumerate(word, 1):
        older, before, row = before, row, [i]
        for j, theirs in enumerate(target, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != theirs))
            if i > 1 and j > 1 and letter == target[j - 2] and word[i - 2] == theirs:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return min(row[-1], most + 1)
