"""Queries with their documents, for embedding models and rerankers.

The query is ``anchor``, ``query``, ``sentence1`` or ``question``. Its document is ``positive``,
``sentence2``, ``document``, ``response``, ``answer`` or ``pos``. Documents that do not answer it are
``negative``, ``negative_1`` and so on, ``negatives``, ``neg`` or ``rejected_response``. A grade is ``score``,
``label``, ``labels`` or ``similarity``. A text may be one, or a list of them. ms-swift's ``messages``,
``positive_messages`` and ``negative_messages`` are read as texts of their last turns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.formats import RETRIEVAL_TEXT, Example, Shape, check_mapping, column_names, listed
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.values import Cell, Row, RowError, as_text
from paceline.models.special_tokens import SECOND

PART, SCORE = "part", "score"  # of a document: its part in its row, and its grade
QUERY, POSITIVE, NEGATIVE = 0, 1, 2
_NAMES: Mapping[str, tuple[str, ...]] = {
    "query": ("anchor", "query", "sentence1", "question", "messages"),
    "positive": ("positive", "sentence2", "document", "positive_messages", "response", "answer", "pos"),
    "score": ("score", "label", "labels", "similarity"),
}
_NEGATIVES = re.compile(r"neg|negatives?(_?\d+)?|negative_messages|rejected_(response|messages)")


class Retrieval(RowKind):
    """A query, its document and any number of documents that do not answer it, each a document of the batch.

    ``part`` is 0 for a query, 1 for its document, 2 for a negative; ``score`` is NaN if rows have none.
    """

    stored_name = "retrieval"
    words = "queries with their documents"
    group = 0
    columns: tuple[str, ...] = (PART, SCORE)
    expected = False
    learns_tokens = False

    def detect(
        self,
        rows: Sequence[Row],
        *,
        where: str,
        requested: str = "auto",
        mapping: Mapping[str, str] | None = None,
    ) -> Shape:
        """Detect the columns from the first rows. ``mapping`` maps ``query``, ``positive``, ``negative`` and
        ``score`` to names in the file. Raises DataError.
        """
        names, mapping = column_names(rows), dict(mapping or {})
        remedy = "columns: {query: X, positive: Y, negative: Z} (next to path:), names in the file"
        wrong = codes.DATA_FORMAT_RETRIEVAL("", where, listed(names), remedy)
        others = [name for name in (*names, *mapping) if _NEGATIVES.fullmatch(name)]
        check_mapping(mapping, (*_NAMES, "negative", *others), names, wrong)
        columns = {}
        for name, usual in _NAMES.items():
            free = [column for column in usual if column in names and column not in mapping.values()]
            likely = [mapping[name]] if name in mapping else free[:1]
            if not likely and name != "score":
                raise DataError(replace(wrong, what=f"the rows have no {name}"))
            if likely:
                columns[name] = likely[0]
        free = [name for name in others if name not in mapping.values() and name not in columns.values()]
        negatives = {name: mapping.get(name, name) for name in free}
        columns |= negatives
        note = f"the query is '{columns['query']}', its document '{columns['positive']}'"
        return Shape(
            RETRIEVAL_TEXT,
            columns,
            note + (f", the others {', '.join(negatives.values())}" if negatives else ""),
        )

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        """Return the query, its document and the negatives. Raises RowError."""
        query, positives, negatives = _texts(row, shape.columns)
        if len(positives) != 1:
            raise RowError("several_documents", f"'{shape.columns['positive']}' has {len(positives)}")
        (score,) = _scores(row, shape.columns, 1)
        parts = [(query, QUERY), (positives[0], POSITIVE), *((text, NEGATIVE) for text in negatives)]
        return tuple(Example(text=text, values={PART: part, SCORE: score}) for text, part in parts)

    def prompted(
        self, examples: tuple[Example, ...], query_prompt: str, document_prompt: str
    ) -> tuple[Example, ...]:
        prompts = {QUERY: query_prompt}
        return tuple(
            replace(example, text=prompts.get(int(example.values[PART]), document_prompt) + example.text)
            for example in examples
        )

    def trained_tokens(self, train_on: str) -> str:
        return "all"


class Ranked(Retrieval):
    """A query next to each of its documents, which a reranker reads together.

    ``part`` is 0 for the first of a row, 1 for the others. ``score`` is the grade. Without one it is 1 for
    the query's documents and 0 for the others.
    """

    stored_name = "ranked"
    words = "queries next to their documents"
    columns = (PART, SCORE, SECOND)

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        """Return the query with each document. Raises RowError."""
        query, positives, negatives = _texts(row, shape.columns)
        grades = [
            1.0 if math.isnan(grade) else grade for grade in _scores(row, shape.columns, len(positives))
        ]
        documents = [*zip(positives, grades, strict=True), *((text, 0.0) for text in negatives)]
        return tuple(
            Example(text=query, pair=text, values={PART: int(number > 0), SCORE: grade})
            for number, (text, grade) in enumerate(documents)
        )

    def prompted(
        self, examples: tuple[Example, ...], query_prompt: str, document_prompt: str
    ) -> tuple[Example, ...]:
        return tuple(
            replace(example, text=query_prompt + example.text, pair=document_prompt + example.pair)
            for example in examples
        )


def _texts(row: Row, columns: Mapping[str, str]) -> tuple[str, list[str], list[str]]:
    """Return (query, its documents, the negatives) of a row. Raises RowError."""
    queries = list(_listed(row.get(columns["query"]), columns["query"]))
    if len(queries) != 1:
        raise RowError("missing_column" if not queries else "bad_messages", f"'{columns['query']}'")
    positives = list(_listed(row.get(columns["positive"]), columns["positive"]))
    if not positives:
        raise RowError("missing_column", f"no '{columns['positive']}'")
    others = [name for key, name in columns.items() if _NEGATIVES.fullmatch(key)]
    return queries[0], positives, [text for name in others for text in _listed(row.get(name), name)]


def _listed(value: Cell, name: str) -> Iterator[str]:
    """Yield the texts of a cell: a text, a list of texts, the last turn of a conversation, or a list of
    conversations. Raises RowError for an empty text.
    """
    if value is None:
        return
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        value = value[-1].get("content") if isinstance(value[-1], Mapping) else None
    if isinstance(value, list):
        for item in value:
            yield from _listed(item, name)
        return
    text = as_text(value, name)
    if not text.strip():
        raise RowError("empty", f"'{name}' is empty")
    yield text


def _scores(row: Row, columns: Mapping[str, str], count: int) -> list[float]:
    """Return the grades of ``count`` documents, NaN where there are none. Raises RowError."""
    value = row.get(columns["score"]) if "score" in columns else None
    values = value if isinstance(value, list) else [value] * count
    if len(values) != count:
        raise RowError("bad_grade", f"'{columns['score']}' has {len(values)} grades for {count} documents")
    return [_score(item, columns.get("score", "")) for item in values]


def _score(value: Cell, name: str) -> float:
    if value is None:
        return math.nan
    try:
        score = float(value) if isinstance(value, (bool, int, float, str)) else math.nan
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise RowError("bad_grade", f"'{name}' is {value!r}"[:99])
    return score


RETRIEVAL, RANKED = Retrieval(), Ranked()
