"""Fields of rows and turns that are not read.

Fields whose loss would change the text are refused, harmless ones are ignored, all others are counted and
named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline.data.formats import COLUMNS, Cell, Row, Shape
from paceline.data.problems import Tally

Lost = tuple[str, str]  # reason (a key of ``problems.REASONS``), detail

# Field of a row → what would be lost without it.
_OF_ROWS: Mapping[str, str] = {
    **dict.fromkeys(("tools", "functions"), "tools"),
    **dict.fromkeys(("tool_calls", "function_call"), "tool_calls"),
    **dict.fromkeys(("reasoning_content",), "reasoning"),
    **dict.fromkeys(("images", "image", "videos", "video", "audios", "audio"), "images"),
}
# The same for a field of a turn.
_OF_TURNS: Mapping[str, str] = {
    **_OF_ROWS,
    **dict.fromkeys(("reasoning", "reasoning_details", "thinking", "thought", "thoughts"), "reasoning"),
}
# Fields of a turn that set its loss weight, unless the value is the default (1, true).
_WEIGHTS = ("weight", "loss_weight", "loss", "train", "training", "trainable", "train_on_turn")
# Roles of turns that are tool calls or their results (ShareGPT formats of LLaMA-Factory and ms-swift).
_CALLERS = ("function_call", "tool_call", "function", "tool_response", "function_response")
# Type of a content part → what would be lost without it.
_PARTS: Mapping[str, str] = {
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
    **dict.fromkeys(("reasoning", "thinking", "redacted_thinking", "analysis"), "reasoning"),
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

    ``unread`` counts rows by the name of a non-empty field that is not read.

    ``keeps_rows``: full rows are kept for a reward function, so all columns are read; ``all_learnt``: turns
    of every role have loss.
    """

    def __init__(self, shape: Shape, *, keeps_rows: bool = False, all_learnt: bool = False) -> None:
        self.unread: dict[str, Tally] = {}
        self._used = dict.fromkeys(sorted(used_columns(shape)))  # in the same order in all processes
        self._keeps_rows = keeps_rows
        self._all_learnt = all_learnt

    def look(self, row: Row, where: str) -> list[Lost]:
        """Return what would be lost of this row, each reason once; count its other unread fields."""
        lost: dict[str, str] = {}
        unread: dict[str, None] = {}
        for name, value in row.items():
            if name in self._used or is_empty(value):
                continue
            if name in _OF_ROWS:
                lost.setdefault(_OF_ROWS[name], f"'{name}'")
            elif name not in HARMLESS and not self._keeps_rows:
                unread[name] = None
        for name in self._used:
            for number, turn in _turns(row.get(name)):
                self._turn(turn, name, number, lost, unread)
        for name in unread:
            self.unread.setdefault(name, Tally()).add(where)
        return list(lost.items())

    def _turn(
        self, turn: Row, column: str, number: int, lost: dict[str, str], unread: dict[str, None]
    ) -> None:
        """Check the fields of turn ``number`` of a column."""
        keys = ("from", "value") if "from" in turn else ("role", "content")
        role, place = str(turn.get(keys[0])), f"turn {number} of '{column}'"
        if role in _CALLERS:
            lost.setdefault("tool_calls", f"{place}: the role '{role}'")
        for name, value in turn.items():
            if name in keys or is_empty(value):
                continue
            reason = _OF_TURNS.get(name)
            if name in _WEIGHTS:
                trained = self._all_learnt or role in ("assistant", "gpt", "chatgpt", "bot", "model")
                if value not in ((1,) if trained else (0, 1)):  # True is 1, false 0
                    lost.setdefault("turn_weight", f"{place}: '{name}' is {str(value)[:20]}")
            elif reason is not None:
                lost.setdefault(reason, f"{place}: '{name}'")
            elif name not in HARMLESS:
                unread[f"{column}[].{name}"] = None
        for kind, name, full in _parts(turn.get(keys[1])):
            if kind in _PARTS:
                lost.setdefault(_PARTS[kind], f"{place}: a part of type '{kind}'")
            elif full and name not in HARMLESS:
                unread[f"{column}[].{keys[1]}[].{name}"] = None


def used_columns(shape: Shape) -> frozenset[str]:
    """Return the columns of the file that rows of this shape are read from."""
    must, may = COLUMNS.get(shape.format, (tuple(shape.columns), ()))
    return frozenset(shape.columns[name] for name in (*must, *may) if name in shape.columns)


def is_empty(value: Cell) -> bool:
    """Whether a field is absent, blank, or all its parts are (Parquet fills all fields of a struct)."""
    if value is None:
        return True
    if isinstance(value, str):
        return value.strip() in ("", "[]", "{}", "null")
    if isinstance(value, Mapping):
        return all(is_empty(item) for item in value.values())
    return isinstance(value, (list, tuple)) and all(is_empty(item) for item in value)


def _turns(value: Cell) -> Iterator[tuple[int, Row]]:
    """Yield (number from 1, turn) of a column that holds turns; nothing for a text."""
    turns: Sequence[Cell] = (
        [value] if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    )
    yield from ((number, turn) for number, turn in enumerate(turns, 1) if isinstance(turn, Mapping))


def _parts(content: Cell) -> Iterator[tuple[str, str, bool]]:
    """Yield (part type, field name, whether the field is non-empty) of the parts of structured content."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, Mapping):
            kind = part.get("type")
            yield str(kind), "type", False
            yield from (
                ("text", str(n), not is_empty(v)) for n, v in part.items() if n not in ("type", "text")
            )
