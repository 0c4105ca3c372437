"""Classes of a classification data set: names and numbers by config or data, and each document's labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.algorithms.classification import LABEL
from paceline.config.sections.classification import ClassificationOptions
from paceline.core.errors import DataError
from paceline.data.prepare import Prepared
from paceline.data.table import TokenTable
from paceline.models.scalar_head import Classes
from paceline.plan.algorithms.base import AlgorithmSpec, Training
from paceline.training import codes

_SHOWN = 12
Label = str | int


@dataclass(frozen=True)
class RowClasses:
    """``columns``: ``LABEL`` of each document, by split; ``words``: a summary for the log."""

    classes: Classes
    columns: dict[str, dict[str, NDArray[Any]]]
    words: str


def read_classes(prepared: Prepared, spec: AlgorithmSpec, training: Training) -> RowClasses:
    """Collect the classes from all rows.

    Raises DataError for labels that do not match ``training``'s options.
    """
    # Labels of all rows; lists make it multi-label, unless the config says which it is
    options, where = ClassificationOptions.model_validate(spec.options_of(training)), f"{spec.key}.labels"
    tables = {"train": prepared.train, **({"eval": prepared.eval} if prepared.eval is not None else {})}
    facts = {split: _facts(table) for split, table in tables.items()}
    rows = [labels for each in facts.values() for labels, _ in each]
    lists = any(several for each in facts.values() for _, several in each)
    several = lists if options.problem_type == "auto" else options.problem_type.startswith("multi")
    # Number the classes, and check the rows against them
    numbers = _numbers(rows, options, where)
    names = _names(numbers, options)
    if len(names) < (1 if several else 2):
        raise DataError(
            codes.DATA_CLASSES(
                "all rows are of one class", where, ", ".join(names) or "none", "rows of at least two classes"
            )
        )
    if not several and any(len(labels) != 1 for labels in rows):
        what, hint = (
            "some rows have several classes, or none",
            f"{spec.key}.problem_type: multi_label_classification",
        )
        raise DataError(codes.DATA_CLASSES(what, f"{spec.key}.problem_type", options.problem_type, hint))
    columns = {split: {LABEL: _column(each, numbers, len(names), several)} for split, each in facts.items()}
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    kind = "a row has any number of them" if several else "a row has one"
    return RowClasses(Classes(names, several), columns, f"{len(names)}: {shown}; {kind}")


def _facts(table: TokenTable) -> list[tuple[list[Label], bool]]:
    return [(found["labels"], found["several"]) for found in map(table.facts, range(len(table.lengths)))]


def _numbers(rows: Iterable[Sequence[Label]], options: ClassificationOptions, where: str) -> dict[Label, int]:
    """Map each label to its class number.

    The order is that of ``labels`` in the config; without it numeric labels are their own number, and names
    are sorted.
    """
    found: set[Label] = {label for labels in rows for label in labels}
    # The config names the classes: by name or by number
    if options.labels:
        known: dict[Label, int] = {name: i for i, name in enumerate(options.labels)}
        known |= {i: i for i in range(len(known))}
        wrong = sorted(map(str, found - set(known)))
        if wrong:
            what = "rows have labels that the config does not name"
            raise DataError(
                codes.DATA_CLASSES(
                    what,
                    where,
                    ", ".join(wrong[:_SHOWN]),
                    "labels: every name, in the order of their numbers",
                )
            )
        return known
    # Numeric labels are class numbers
    if all(isinstance(label, int) or label.isdecimal() for label in found):
        numbers = {label: int(label) for label in found}
        count = options.num_labels
        if count is not None and numbers and max(numbers.values()) >= count:
            what = f"rows have a class beyond num_labels, {count} of them being 0 to {count - 1}"
            raise DataError(
                codes.DATA_CLASSES(
                    what, where, str(max(numbers.values())), f"num_labels: {max(numbers.values()) + 1}"
                )
            )
        return numbers
    # Names are numbered in alphabetical order
    texts = sorted({str(label) for label in found})
    count = options.num_labels
    if count is not None and count != len(texts):
        what = f"the rows have {len(texts)} classes by name, and num_labels says {count}"
        raise DataError(
            codes.DATA_CLASSES(what, where, ", ".join(texts[:_SHOWN]), "labels: every name, or no num_labels")
        )
    return {label: texts.index(str(label)) for label in found}


def _names(numbers: Mapping[Label, int], options: ClassificationOptions) -> tuple[str, ...]:
    if options.labels:
        return tuple(options.labels)
    named = {number: str(label) for label, number in numbers.items()}
    count = options.num_labels or max(numbers.values(), default=-1) + 1
    plain = all(isinstance(label, int) or label.isdecimal() for label in numbers)
    return tuple(f"LABEL_{i}" if plain else named[i] for i in range(count))


def _column(
    rows: Sequence[tuple[list[Label], bool]], numbers: Mapping[Label, int], count: int, several: bool
) -> NDArray[Any]:
    if not several:
        return np.array([numbers[labels[0]] for labels, _ in rows], np.int64)
    found = np.zeros((len(rows), count), np.bool_)
    for row, (labels, _) in enumerate(rows):
        found[row, [numbers[label] for label in labels]] = True
    return found
