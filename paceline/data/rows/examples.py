"""Convert a row of any format to examples, or report the fields that would be lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import DataError
from paceline.core.files import read_text
from paceline.data import codes
from paceline.data.images.open_image import ImageRules
from paceline.data.images.row_images import with_pictures, with_slots
from paceline.data.images.slots import RowImage
from paceline.data.rows import messages, tools_and_documents
from paceline.data.rows.formats import ANSWERED, COLUMNS, IMAGE_COLUMNS, PLAIN_TEXTS, Example, Shape
from paceline.data.rows.kinds.base import DOCUMENTS, RowKind
from paceline.data.rows.messages import Message, unread_in_calls
from paceline.data.rows.row_errors import Problem, Tally
from paceline.data.rows.tools_and_documents import with_beside
from paceline.data.rows.values import RawRow, Row, RowError, is_empty

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection


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
    **dict.fromkeys(("functions", "tools"), "tools_in_turn"),
    **dict.fromkeys(("train_detail", "training_detail", "loss_scale"), "turn_weight"),
}
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


@dataclass(frozen=True)
class Reading:
    """How rows are read: ``train_on``, ``strict``, ``converter`` and ``default_system`` as in the config.

    ``kind``: the kind of rows. ``last_answers``: only answers after the last question have loss.
    ``completions``: all of a row has loss, unless it has prompt and completion apart.
    ``answers_only``: the config asks for loss on answers only, so rows must have answers. ``query_prompt``,
    ``document_prompt``: texts put before queries and documents. ``images``: how pictures are opened; None:
    rows with pictures are refused.
    """

    train_on: str = "assistant"
    kind: RowKind = DOCUMENTS
    strict: bool = False
    converter: str | None = None
    answers_only: bool = False
    query_prompt: str = ""
    document_prompt: str = ""
    default_system: str | None = None
    last_answers: bool = False
    completions: bool = False
    images: ImageRules | None = None

    @classmethod
    def of(cls, data: DataSection, kind: RowKind, *, images: bool = False) -> Reading:
        """Return the reading of this kind of rows for a config's ``data``; ``images``: it sees some."""
        train_on = "all" if data.train_on == "all" else "assistant"
        last, prompts = data.train_on == "last", (data.query_prompt, data.document_prompt)
        answers_only = last or data.train_on == "assistant"
        pictures, completions = ImageRules.of(data) if images else None, data.train_on == "completion"
        own = (*prompts, data.default_system, last, completions, pictures)
        return cls(train_on, kind, data.strict, data.converter, answers_only, *own)

    def refuses(self, shape: Shape) -> bool:
        """Whether rows of this shape lack the answers that ``answers_only`` needs."""
        learns = self.kind.trained_tokens(self.train_on) == "assistant" and not self.kind.answered
        return self.answers_only and learns and shape.format == "text"


class RowReader:
    """Convert rows of one shape to examples.

    ``unread`` counts rows by the name of a non-empty field that is not read, ``HARMLESS`` ones included.
    """

    def __init__(self, shape: Shape, reading: Reading) -> None:
        self.unread: dict[str, Tally] = {}
        self._shape, self._kind, self._strict = shape, reading.kind, reading.strict
        self._prompts = reading.query_prompt, reading.document_prompt
        self._system, self._last = system_text(reading.default_system), reading.last_answers
        self._whole = reading.completions and shape.format not in ANSWERED
        columns = (name for group in COLUMNS.get(shape.format, (tuple(shape.columns),)) for name in group)
        # The columns of the file that rows are read from, in the same order in all processes
        read = (name for name in columns if name in shape.columns and name not in IMAGE_COLUMNS)
        self._used = sorted({shape.columns[name] for name in read})
        self._columns, self._images = shape.columns, reading.images
        self._media = reading.images.media(shape.folder) if reading.images else None
        self._conversations = shape.format not in PLAIN_TEXTS
        # Whether a turn may say that it has loss, or a list of the row may say it of each
        self._weighs = reading.kind.learns_tokens and not reading.kind.answered
        self._listed = self._weighs and shape.format in ("messages", "sharegpt")

    def read(self, row: Row, where: str) -> tuple[Example, ...] | Problem:
        """Return the examples of a row, or the problem.

        Fields that would be lost are reported first, all at once.
        """
        images: list[RowImage] = []
        try:
            if self._images and self._media:
                row, named = with_slots(row, self._columns)
                images = [self._images.opened(image, self._media) for image in named]
        except RowError as error:
            return Problem(error.reason, where, error.detail)
        if lost := self._find_lost(row, where):
            (reason, detail), *also = lost.items()
            return Problem(reason, where, detail, tuple(also))
        try:
            examples = self._kind.prompted(self._kind.normalise(row, self._shape), *self._prompts)
            whole = (with_system(with_beside(example, row), self._system) for example in examples)
            examples = tuple(learning_last(example) if self._last else example for example in whole)
            examples = tuple(replace(each, whole=True) for each in examples) if self._whole else examples
            return with_pictures(examples, images) if images else examples
        except RowError as error:
            return Problem(error.reason, where, error.detail)

    def read_raw(self, row: RawRow) -> tuple[Example, ...] | Problem:
        """Return the examples of a row, or the problem, which may be that the row could not be read."""
        if row.value is None:
            return Problem(row.reason, row.where, row.detail)
        return self.read(row.value, row.where)

    def usable(self, rows: Iterable[RawRow]) -> Iterator[tuple[RawRow, tuple[Example, ...]]]:
        """Yield each usable row with its examples."""
        for row in rows:
            examples = self.read_raw(row)
            if not isinstance(examples, Problem):
                yield row, examples

    def count(self, names: Iterable[str], where: str) -> None:
        """Count a row for each of its unused fields."""
        for name in names:
            self.unread.setdefault(name, Tally()).add(where)

    def _find_lost(self, row: Row, where: str) -> dict[str, str]:
        """Return the fields whose loss matters, each reason once; count the other unread fields."""
        lost: dict[str, str] = {}
        unread: dict[str, None] = {}
        keeps_rows = self._kind.keeps_rows  # for a reward function: all columns are read
        for name, value in row.items():
            if name in self._used or is_empty(value):
                continue
            if self._conversations and tools_and_documents.is_read(name, value):
                continue
            if name in tools_and_documents.TOOLS:
                lost.setdefault("tools", f"'{name}'")
            elif name in REFUSED_OF_ROWS:
                lost.setdefault(REFUSED_OF_ROWS[name], f"'{name}'")
            elif name in messages.LOSS_LISTS and isinstance(value, list) and not keeps_rows:
                if not (self._listed and name in messages.TURN_LISTS):
                    lost.setdefault("turn_weight", f"'{name}': a list of the whole row")
            elif not keeps_rows:
                unread[name] = None
        for name in self._used:
            value = row.get(name)
            turns = [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []
            for number, turn in enumerate(turns, 1):
                if isinstance(turn, Mapping):
                    self._check_turn(turn, name, number, lost, unread)
        unknown = [name for name in unread if not is_harmless(name)]
        if self._strict and unknown:
            lost["unknown_field"] = ", ".join(f"'{name}'" for name in unknown)
        self.count(unread, where)
        return lost

    def _check_turn(
        self, turn: Row, column: str, number: int, lost: dict[str, str], unread: dict[str, None]
    ) -> None:
        """Check the fields of turn ``number`` of a column."""
        keys = ("from", "value") if "from" in turn else ("role", "content")
        where = f"turn {number} of '{column}'"
        full = [name for name, value in turn.items() if name not in keys and not is_empty(value)]
        idle: list[str] = []
        for name in full:
            if name in REFUSED_OF_TURNS and (name, turn[name]) != ("channel", "final"):
                lost.setdefault(REFUSED_OF_TURNS[name], f"{where}: '{name}'")
            elif not self._is_read(name, full):
                idle.append(name)
            elif name in messages.CALL_FIELDS:
                idle += (f"{name}{path}" for path in unread_in_calls(turn[name]))
        content = turn.get(keys[1])
        if messages.ROLE_NAMES.get(str(turn.get(keys[0]))) == messages.CALL:
            idle += (f"{keys[1]}{path}" for path in unread_in_calls(content))
        parts = [p for p in (content if isinstance(content, list) else [content]) if isinstance(p, Mapping)]
        for part in parts:
            kind = str(part.get("type"))
            read = messages.thought_in(part)[0] if kind in messages.REASONING_PARTS else "text"
            if kind in REFUSED_PARTS:
                lost.setdefault(REFUSED_PARTS[kind], f"{where}: a part of type '{kind}'")
            else:
                others = (n for n, v in part.items() if n not in ("type", read) and not is_empty(v))
                idle += (f"{keys[1]}[].{name}" for name in others)
        if any(
            part.get("type") in messages.REASONING_PARTS for part in parts
        ):  # these are read, not the field
            idle += (name for name in full if name in messages.REASONING)
        unread |= dict.fromkeys(f"{column}[].{name}" for name in idle)

    def _is_read(self, name: str, full: Sequence[str]) -> bool:
        """Whether a turn's field is read; of several with the same meaning only the first is."""
        if not self._weighs and name in (*messages.WEIGHTS, *messages.TRAINS):
            return False
        for group in (messages.REASONING, messages.CALL_FIELDS):
            if name in group:
                return name == next(field for field in group if field in full)
        return name in messages.READ


def system_text(named: str | None) -> str | None:
    """Return the text of ``data.default_system``: of a .txt file, if it names one. Raises DataError."""
    if named is None or not named.endswith(".txt"):
        return named
    try:
        return read_text(Path(named).expanduser())
    except (OSError, ValueError) as error:
        raise DataError(codes.DATA_SYSTEM_FILE("data.default_system", f"{named}: {error}")) from error


def with_system(example: Example, text: str | None) -> Example:
    """Return a conversation with a system turn of this text before it, if it begins with none."""
    if not text or not example.messages or example.messages[0]["role"] in ("system", "developer"):
        return example
    system: Message = {"role": "system", "content": text}
    first = example.learn_from + 1 if example.learn_from else 0
    return replace(example, messages=(system, *example.messages), learn_from=first)


def learning_last(example: Example) -> Example:
    """Return a conversation with loss only on answers after the last question or tool result."""
    questions = [n for n, turn in enumerate(example.messages) if turn["role"] in ("user", "tool")]
    return replace(example, learn_from=max(example.learn_from, questions[-1] + 1)) if questions else example


def answers_in_a_row(examples: Iterable[Example]) -> bool:
    """Whether a conversation has two consecutive answers with loss: often a ranking written as turns."""
    return any(
        all(turn["role"] == "assistant" and turn.get("trained", True) for turn in pair)
        and "tool_calls" not in pair[0]
        for example in examples
        for pair in itertools.pairwise(example.messages[example.learn_from :])
    )


def is_harmless(name: str) -> bool:
    """Whether a field of a row or of a turn (``messages[].id``) is only metadata."""
    return name.rpartition(".")[2] in HARMLESS
