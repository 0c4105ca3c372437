"""Convert a row of any format to examples, or report what would be lost of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.data.rows import messages, tools_and_documents
from paceline.data.rows.formats import COLUMNS, TEXT, Example, Shape
from paceline.data.rows.kinds.base import DOCUMENTS, RowKind
from paceline.data.rows.messages import unread_in_calls
from paceline.data.rows.row_errors import Problem, Tally
from paceline.data.rows.tools_and_documents import with_beside
from paceline.data.rows.values import Cell, Row, RowError, is_empty

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection


@dataclass(frozen=True)
class Reading:
    """How rows are read: ``train_on``, ``strict`` and ``converter`` as in the config, ``kind`` of row.

    ``answers_only``: the config itself asks for loss on the answers alone, so that rows must have answers.
    """

    train_on: str = "assistant"
    kind: RowKind = DOCUMENTS
    strict: bool = False
    converter: str | None = None
    answers_only: bool = False

    @classmethod
    def of(cls, data: DataSection, kind: RowKind) -> Reading:
        """Return how rows of this kind are read under a config's ``data``."""
        train_on = "all" if data.train_on == "all" else "assistant"
        return cls(train_on, kind, data.strict, data.converter, answers_only=data.train_on == "assistant")

    def refuses(self, shape: Shape) -> bool:
        """Whether rows of this shape have no answer, though the loss is asked for on answers alone."""
        learns = self.kind.trained_tokens(self.train_on) == "assistant" and not self.kind.answered
        return self.answers_only and learns and shape.format == "text"


class RowReader:
    """Convert rows of one shape to examples; ``unread`` counts fields that are not read."""

    def __init__(self, shape: Shape, reading: Reading) -> None:
        self._shape, self._kind = shape, reading.kind
        weighs = reading.kind.learns_tokens and not reading.kind.answered
        self._fields = FieldReader(
            shape, keeps_rows=reading.kind.keeps_rows, weighs=weighs, strict=reading.strict
        )

    @property
    def unread(self) -> dict[str, Tally]:
        return self._fields.unread

    def count(self, names: Iterable[str], where: str) -> None:
        """Count a row for each field that the chat template did not render."""
        self._fields.count(names, where)

    def read(self, row: Row, where: str) -> tuple[Example, ...] | Problem:
        """Return the examples of a row, or the problem.

        Fields that would be lost are reported first, all at once.
        """
        lost = self._fields.look(row, where)
        if lost:
            (reason, detail), *also = lost
            return Problem(reason, where, detail, tuple(also))
        try:
            return tuple(with_beside(one, row) for one in self._kind.normalise(row, self._shape))
        except RowError as error:
            return Problem(error.reason, where, error.detail)


Lost = tuple[str, str]  # reason (a key of ``problems.REASONS``), detail

# Field of a row → what would be lost without it.
REFUSED_OF_ROWS: Mapping[str, str] = {
    **dict.fromkeys(("tool_calls", "function_call"), "tool_calls"),
    **dict.fromkeys(("reasoning_content",), "reasoning"),
    **dict.fromkeys(("images", "image", "videos", "video", "audios", "audio"), "images"),
}
# The same for a field of a turn.
REFUSED_OF_TURNS: Mapping[str, str] = {
    **{name: reason for name, reason in REFUSED_OF_ROWS.items() if name not in messages.READ},
    **dict.fromkeys(("reasoning_details", "channel", "recipient"), "reasoning"),
    **dict.fromkeys(("functions", "tools"), "tools"),
    **dict.fromkeys(("train_detail", "training_detail", "loss_scale"), "turn_weight"),
}
# Fields of a turn with one meaning.
_CALLS = ("tool_calls", "function_call")
_ALIKE = (messages.REASONING, _CALLS)
# Type of a content part → what would be lost without it.
REFUSED_PARTS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "image",
            "image_url",
            "input_image",
            "video",
            "video_url",
            "audio",
            "audio_url",
            "input_audio",
            "file",
        ),
        "images",
    ),
    **dict.fromkeys(("redacted_thinking",), "reasoning"),
    **dict.fromkeys(("tool_use", "tool_call", "function_call", "tool_result", "tool_response"), "tool_calls"),
}
# Fields that identify or describe a row but are not part of its text.
HARMLESS = frozenset(
    {
        "id",
        "_id",
        "idx",
        "index",
        "__index_level_0__",
        "uuid",
        "uid",
        "hash",
        "row_id",
        "prompt_id",
        "question_id",
        "conversation_id",
        "message_id",
        "source",
        "data_source",
        "dataset",
        "dataset_name",
        "origin",
        "url",
        "license",
        "language",
        "lang",
        "model",
        "model_name",
        "generator",
        "split",
        "date",
        "created",
        "created_at",
        "timestamp",
        "category",
        "subcategory",
        "meta",
        "metadata",
        "num_tokens",
        "token_count",
        "n_tokens",
    }
)


class FieldReader:
    """Check the fields of rows of one shape.

    ``unread`` counts rows by the name of a non-empty field that is not read, ``HARMLESS`` ones included.

    ``keeps_rows``: full rows are kept for a reward function, so all columns are read; ``weighs``: a turn may
    say whether it has loss; ``strict``: no row may have a field that is not read.
    """

    def __init__(
        self, shape: Shape, *, keeps_rows: bool = False, weighs: bool = True, strict: bool = False
    ) -> None:
        self.unread: dict[str, Tally] = {}
        self._used = dict.fromkeys(sorted(used_columns(shape)))  # in the same order in all processes
        self._keeps_rows = keeps_rows
        self._weighs = weighs
        self._strict = strict
        self._conversations = shape.format != TEXT
        self._listed = weighs and shape.format in ("messages", "sharegpt")

    def look(self, row: Row, where: str) -> list[Lost]:
        """Return what would be lost of this row, each reason once; count its other unread fields."""
        lost: dict[str, str] = {}
        unread: dict[str, None] = {}
        for name, value in row.items():
            if name in self._used or is_empty(value):
                continue
            if self._conversations and tools_and_documents.is_read(name, value):
                continue
            if name in tools_and_documents.TOOLS:
                lost.setdefault("tools", f"'{name}'")
            elif name in REFUSED_OF_ROWS:
                lost.setdefault(REFUSED_OF_ROWS[name], f"'{name}'")
            elif name in messages.LOSS_LISTS and isinstance(value, list) and not self._keeps_rows:
                if not (self._listed and name in messages.TURN_LISTS):
                    lost.setdefault("turn_weight", f"'{name}': a list of the whole row")
            elif not self._keeps_rows:
                unread[name] = None
        for name in self._used:
            for number, turn in _turns(row.get(name)):
                self._turn(turn, name, number, lost, unread)
        unknown = [name for name in unread if not is_harmless(name)]
        if self._strict and unknown:
            lost["unknown_field"] = ", ".join(f"'{name}'" for name in unknown)
        self.count(unread, where)
        return list(lost.items())

    def count(self, names: Iterable[str], where: str) -> None:
        """Count a row for each of the fields that took no part."""
        for name in names:
            self.unread.setdefault(name, Tally()).add(where)

    def _turn(
        self, turn: Row, column: str, number: int, lost: dict[str, str], unread: dict[str, None]
    ) -> None:
        """Check the fields of turn ``number`` of a column."""
        keys = ("from", "value") if "from" in turn else ("role", "content")
        place = f"turn {number} of '{column}'"
        full = [name for name, value in turn.items() if name not in keys and not is_empty(value)]
        for name in full:
            if name in REFUSED_OF_TURNS and (name, turn[name]) != ("channel", "final"):
                lost.setdefault(REFUSED_OF_TURNS[name], f"{place}: '{name}'")
            elif not self._is_read(name, full):
                unread[f"{column}[].{name}"] = None
            elif name in _CALLS:
                unread |= dict.fromkeys(f"{column}[].{name}{found}" for found in unread_in_calls(turn[name]))
        if messages.ROLE_NAMES.get(str(turn.get(keys[0]))) == messages.CALL:
            inside = unread_in_calls(turn.get(keys[1]))
            unread |= dict.fromkeys(f"{column}[].{keys[1]}{found}" for found in inside)
        thinks = False
        for kind, name, filled in _parts(turn.get(keys[1])):
            thinks = thinks or kind in messages.REASONING_PARTS
            if kind in REFUSED_PARTS:
                lost.setdefault(REFUSED_PARTS[kind], f"{place}: a part of type '{kind}'")
            elif filled:
                unread[f"{column}[].{keys[1]}[].{name}"] = None
        if thinks:  # the parts are read, not the field
            unread |= dict.fromkeys(f"{column}[].{name}" for name in full if name in messages.REASONING)

    def _is_read(self, name: str, full: Sequence[str]) -> bool:
        """Whether a turn's field is read: of several with one meaning, the first is."""
        if not self._weighs and name in (*messages.WEIGHTS, *messages.TRAINS):
            return False
        for group in _ALIKE:
            if name in group:
                return name == next(one for one in group if one in full)
        return name in messages.READ


def is_harmless(name: str) -> bool:
    """Whether a field, of a row or of a turn (``messages[].id``), says nothing of the text."""
    return name.rpartition(".")[2] in HARMLESS


def used_columns(shape: Shape) -> frozenset[str]:
    """Return the columns of the file that rows of this shape are read from."""
    must, may = COLUMNS.get(shape.format, (tuple(shape.columns), ()))
    return frozenset(shape.columns[name] for name in (*must, *may) if name in shape.columns)


def _turns(value: Cell) -> Iterator[tuple[int, Row]]:
    """Yield (number from 1, turn) of a column that holds turns; nothing for a text."""
    found: Sequence[Cell] = (
        [value] if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    )
    yield from ((number, turn) for number, turn in enumerate(found, 1) if isinstance(turn, Mapping))


def _parts(content: Cell) -> Iterator[tuple[str, str, bool]]:
    """Yield (part type, field name, whether the field is full and not read) of the parts of a content."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, Mapping):
            kind = str(part.get("type"))
            read = messages.thought_in(part)[0] if kind in messages.REASONING_PARTS else "text"
            yield kind, "type", False
            yield from (
                (kind, str(name), not is_empty(value))
                for name, value in part.items()
                if name not in ("type", read)
            )
