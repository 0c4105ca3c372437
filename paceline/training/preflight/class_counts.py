"""Numbers of the classes of a classification data set, by config or data. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from paceline.config.sections.algorithms.supervised import ClassificationOptions
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.training import codes

SHOWN = 12
Label = str | int


def with_head(
    rows: Iterable[Sequence[Label]], options: ClassificationOptions, head: Sequence[str], where: str
) -> ClassificationOptions:
    """Return the options; if they name no classes, with those of the trained ``head`` that training starts
    from.

    Each row of the head keeps its class, whatever the order of names in the data. Raises DataError if there
    are other classes than the head has.
    """
    count = len(options.labels) or options.num_labels
    if not head or count == len(head):
        return options
    plain = all(name == f"LABEL_{i}" for i, name in enumerate(head))
    labels_of_rows = {label for labels in rows for label in labels}
    fits = (
        _plain(labels_of_rows) and max(map(int, labels_of_rows), default=-1) < len(head)
        if plain
        else labels_of_rows <= _by_name(head).keys()
    )
    if count is None and fits:
        return options.model_copy(update={"num_labels": len(head)} if plain else {"labels": tuple(head)})
    shown = f"{count} in the config" if count else ", ".join(sorted(map(str, labels_of_rows))[:SHOWN])
    hint = "name the language model that it was trained from, for a new head"
    if count is None and len(labels_of_rows) == len(head):
        hint += f"; or labels: [{', '.join(head)}], each renamed as you mean it, to train this head on"
    raise DataError(
        codes.DATA_CLASSES(
            "the classes are others than those of the trained head that training starts from",
            where,
            f"{shown}; the head: {', '.join(head[:SHOWN])}",
            hint,
        )
    )


def check_differences(rows: Iterable[Sequence[Label]], where: str) -> None:
    """Raise DataError if all rows have the same classes: of two, vectors such as [0, 1] look like both."""
    alike = {frozenset(labels) for labels in rows}
    if len(alike) == 1:
        labels = sorted(map(str, *alike))
        several = " (a list names the classes: [0, 1] is both, [1] the second)" if len(labels) > 1 else ""
        raise DataError(
            codes.DATA_CLASSES(
                f"all rows have the same class{'es' if several else ''}",
                where,
                ", ".join(labels[:SHOWN]) or "none",
                f"give rows of at least two classes{several}",
            )
        )


def class_numbers(
    rows: Iterable[Sequence[Label]], options: ClassificationOptions, where: str, *, all_rows: bool = True
) -> dict[Label, int]:
    """Map each label to its class number.

    The order is that of ``labels`` in the config; without it numeric labels are their own number, and names
    are sorted. Raises DataError for labels that do not match ``options``; if these are not ``all_rows``, only
    for errors that further rows cannot fix.
    """
    labels_of_rows: set[Label] = {label for labels in rows for label in labels}
    # The config names the classes: by name or by number
    if options.labels:
        numbered = _by_name(options.labels)
        wrong = sorted(map(str, labels_of_rows - set(numbered)))
        if wrong:
            what = "rows have labels that the config does not list"
            raise DataError(
                codes.DATA_CLASSES(
                    what,
                    where,
                    ", ".join(wrong[:SHOWN]),
                    "list every name in labels, in the order of their numbers",
                )
            )
        return numbered
    # Numeric labels are class numbers
    if _plain(labels_of_rows):
        numbers = {label: int(label) for label in labels_of_rows}
        count = options.num_labels
        if count is not None and numbers and max(numbers.values()) >= count:
            what = f"rows have a class beyond num_labels; {count} classes are 0 to {count - 1}"
            raise DataError(
                codes.DATA_CLASSES(
                    what, where, str(max(numbers.values())), f"num_labels: {max(numbers.values()) + 1}"
                )
            )
        return numbers
    if any(isinstance(label, int) for label in labels_of_rows):
        what = "some rows give class names, others class numbers"
        wrong = sorted(map(str, labels_of_rows))
        raise DataError(
            codes.DATA_CLASSES(
                what,
                where,
                ", ".join(wrong[:SHOWN]),
                "use names only, or numbers only; or list every name in labels, in the order of their"
                " numbers",
            )
        )
    # Names are numbered in alphabetical order
    texts = sorted({str(label) for label in labels_of_rows})
    count = options.num_labels
    if count is not None and (count != len(texts) if all_rows else count < len(texts)):
        what = f"the rows have {len(texts)} class names, but num_labels is {count}"
        raise DataError(
            codes.DATA_CLASSES(
                what, where, ", ".join(texts[:SHOWN]), "list every name in labels, or remove num_labels"
            )
        )
    return {label: texts.index(str(label)) for label in labels_of_rows}


def empty_classes(
    rows: Iterable[Sequence[Label]], options: ClassificationOptions, where: str, *, all_rows: bool = True
) -> Iterator[Diagnostic]:
    """Warn of unused class numbers where the largest number alone sets the number of classes.

    If these are not ``all_rows``, warn only if most classes are unused.
    """
    labels_of_rows = {label for labels in rows for label in labels}
    if not labels_of_rows or options.labels or options.num_labels or not _plain(labels_of_rows):
        return
    written = {int(label): str(label) for label in labels_of_rows}
    numbers = sorted(written)
    count = numbers[-1] + 1
    if len(numbers) < count if all_rows else 2 * len(numbers) < count:
        listed = ", ".join(f"'{written[n]}'" for n in numbers[:SHOWN])
        listed += ", …" if len(numbers) > SHOWN else ""
        yield codes.DATA_EMPTY_CLASSES(
            where,
            listed,
            largest=numbers[-1],
            count=f"{count:,}",
            given=f"{len(numbers):,}",
            read="the rows" if all_rows else "the first rows",
            line=f"{where}: [{listed}]",
            number=count,
        )


def _plain(labels: Iterable[Label]) -> bool:
    """Whether the labels are class numbers."""
    return all(isinstance(label, int) or label.isdecimal() for label in labels)


def _by_name(names: Sequence[str]) -> dict[Label, int]:
    """Map names to their numbers, and the numbers to themselves, unless names are numbers: then a number
    in the data is a name.
    """
    numbers: dict[Label, int] = {int(name): i for i, name in enumerate(names) if name.isdecimal()}
    return {name: i for i, name in enumerate(names)} | (numbers or {i: i for i in range(len(names))})
