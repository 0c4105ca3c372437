"""Classes of a classification data set: names and numbers by config or data, and each document's labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.algorithms.supervised.classification import LABEL
from paceline.config.sections.algorithms.supervised import ClassificationOptions
from paceline.core.errors import DataError
from paceline.data.prepare.prepare import Prepared
from paceline.models.heads.sequence_classification import Classes
from paceline.plan.algorithms.spec import AlgorithmSpec, Training
from paceline.training import codes
from paceline.training.preflight.class_counts import SHOWN, Label, check_differences, class_numbers, with_head


@dataclass(frozen=True)
class RowClasses:
    """``columns``: ``LABEL`` of each document, by split; ``words``: a summary for the log."""

    classes: Classes
    columns: dict[str, dict[str, NDArray[np.generic]]]
    words: str


def read_classes(
    prepared: Prepared, spec: AlgorithmSpec, training: Training, head: Sequence[str] = ()
) -> RowClasses:
    """Collect the classes from all rows; ``head``: those of a trained head that training starts from.

    Raises DataError for labels that do not match ``training``'s options.
    """
    # Labels of all rows; lists make it multi-label, unless the config says which it is
    options, where = ClassificationOptions.model_validate(spec.options_of(training)), f"{spec.key}.labels"
    tables = {"train": prepared.train, **({"eval": prepared.eval} if prepared.eval is not None else {})}
    facts = {
        split: [(row["labels"], row["several"]) for row in map(table.facts, range(len(table.lengths)))]
        for split, table in tables.items()
    }
    rows = [labels for each in facts.values() for labels, _ in each]
    lists = any(several for each in facts.values() for _, several in each)
    several = lists if options.problem_type == "auto" else options.problem_type.startswith("multi")
    # Number the classes, and check the rows against them
    options = with_head(rows, options, head, where)
    numbers = class_numbers(rows, options, where)
    names = _names(numbers, options)
    if several or len(names) < 2:
        check_differences(rows, where)
    if not several and any(len(labels) != 1 for labels in rows):
        raise DataError(
            codes.DATA_CLASSES(
                "some rows have several classes, or none",
                f"{spec.key}.problem_type",
                options.problem_type,
                f"{spec.key}.problem_type: multi_label_classification",
            )
        )
    columns = {split: {LABEL: _column(each, numbers, len(names), several)} for split, each in facts.items()}
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    kind = "a row has any number of classes" if several else "a row has one class"
    empty = len(names) - len({numbers[label] for labels in rows for label in labels})
    kind += f"; {empty:,} of them without a row" if empty else ""
    return RowClasses(Classes(names, several), columns, f"{len(names):,}: {shown}; {kind}")


def _names(numbers: Mapping[Label, int], options: ClassificationOptions) -> tuple[str, ...]:
    if options.labels:
        return tuple(options.labels)
    by_number = {number: str(label) for label, number in numbers.items()}
    count = options.num_labels or max(numbers.values(), default=-1) + 1
    plain = all(isinstance(label, int) or label.isdecimal() for label in numbers)
    return tuple(f"LABEL_{i}" if plain else by_number[i] for i in range(count))


def _column(
    rows: Sequence[tuple[list[Label], bool]], numbers: Mapping[Label, int], count: int, several: bool
) -> NDArray[np.generic]:
    if not several:
        return np.array([numbers[labels[0]] for labels, _ in rows], np.int64)
    one_hot = np.zeros((len(rows), count), np.bool_)
    for row, (labels, _) in enumerate(rows):
        one_hot[row, [numbers[label] for label in labels]] = True
    return one_hot
