"""Names of the metrics of generated answers. What they compute: ``evaluation.metrics``."""

from __future__ import annotations

import re
from collections.abc import Sequence

ANSWER_METRICS = ("exact_match", "numeric", "f1", "rouge1", "rouge2", "rougeL", "bleu", "math_verify")
METRIC_GROUPS = {"rouge": ("rouge1", "rouge2", "rougeL")}
SEVERAL_ANSWERS = re.compile(r"pass@[1-9]\d*(:.*)?")  # metrics of several answers to a row
OF_LENGTH = ("eval_answer_tokens", "eval_answers_ended")


def written_out(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names with groups written out, each once."""
    return tuple(dict.fromkeys(one for name in names for one in METRIC_GROUPS.get(name, (name,))))


def labels_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return each metric's name in an evaluation: a function of the user's own without its module; ``_2`` is
    added to a second.
    """
    short = [name.rpartition(":")[2] for name in names]
    before = [short[:at].count(label) for at, label in enumerate(short)]
    return tuple(
        f"eval_{label}" + (f"_{count + 1}" if count else "")
        for label, count in zip(short, before, strict=True)
    )
