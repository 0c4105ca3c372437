"""Row formats: detected from the rows, and normalised to a conversation or a plain text."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.json_types import Json, JsonObject
from paceline.data import codes
from paceline.data.images.slots import RowImage
from paceline.data.rows.messages import (
    Message,
    has_meaning,
    is_answer,
    kind_of_value,
    turns_of,
    turns_or_text,
    with_listed,
)
from paceline.data.rows.values import Cell, Row, RowError, as_text, is_empty

TEXT = "text"
PAIR_TEXT = "preference_text"
CLASSIFIED_TEXT = "classified"
RETRIEVAL_TEXT = "retrieval"
#: The formats without a conversation: no chat template writes them.
PLAIN_TEXTS = frozenset({TEXT, PAIR_TEXT, CLASSIFIED_TEXT, RETRIEVAL_TEXT})
#: The formats with a row's prompt and its completion apart.
ANSWERED = frozenset({"prompt_completion", "alpaca"})
#: Columns with a row's pictures.
IMAGE_COLUMNS = ("images", "image")
#: Types of a turn's parts that are pictures.
IMAGE_PARTS = ("image", "image_url", "input_image")
# format -> (required columns, optional columns)
COLUMNS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "messages": (("messages",), ("system", *IMAGE_COLUMNS)),
    "sharegpt": (("conversations",), ("system", *IMAGE_COLUMNS)),
    "alpaca": (("instruction", "output"), ("input", "system", "history", *IMAGE_COLUMNS)),
    "prompt_completion": (("prompt", "completion"), ("system", "history", *IMAGE_COLUMNS)),
    TEXT: (("text",), IMAGE_COLUMNS),
}
# alternative names of prompt and completion (the first match counts)
PAIRS: tuple[tuple[str, str], ...] = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("query", "response"),
)


@dataclass(frozen=True)
class Shape:
    """How to read a row: its format, and the file's name for each column of the format.

    ``note``: its assumptions. ``folder``: the one beside the rows, in which paths of pictures begin.
    """

    format: str
    columns: Mapping[str, str]
    note: str = ""
    folder: str = ""


@dataclass(frozen=True)
class Example:
    """A normalised row: ``messages`` (a conversation) or ``text``.

    Assistant turns have loss from turn ``learn_from`` on, and ``text`` from character ``begin`` on.
    ``whole``: every token has loss. ``pair``: the second of two texts, of which ``text`` is the first.
    ``values``: extra numbers by name. ``facts``: JSON about a prompt that the model answers itself, for
    reward functions. ``tools`` (JSON schemas), ``documents`` and ``template_kwargs`` are for the chat
    template. ``images``: the pictures whose slots the texts have, in order.
    """

    messages: tuple[Message, ...] = ()
    text: str = ""
    pair: str = ""
    learn_from: int = 0
    begin: int = 0
    whole: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    facts: str = ""
    tools: tuple[JsonObject, ...] = ()
    documents: tuple[JsonObject, ...] = ()
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    images: tuple[RowImage, ...] = ()

    @property
    def prompt(self) -> str:
        """The text before the first answer, or all of a plain text.

        Rows with equal prompts stay in one split.
        """
        seen = [image.digest for image in self.images]
        if not self.messages:
            text = self.text[: self.begin] or "\n".join(filter(None, (self.text, self.pair)))
            return "\n".join((text, *seen)) if seen else text
        turns: list[str] = []
        for number, message in enumerate(self.messages):
            if message["role"] == "assistant" and number >= self.learn_from:
                break
            turns.append(f"{message['role']}\n{message['content']}")
        return "\n".join((*turns, *seen))


def column_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of the columns of these rows, in the order in which they first come."""
    return list(dict.fromkeys(name for row in rows for name in row))


def listed(names: Sequence[str]) -> str:
    """Return column names as text for messages."""
    return f"columns {', '.join(names) or 'none'}"


def detect(
    rows: Sequence[Row], *, where: str, requested: str = "auto", mapping: Mapping[str, str] | None = None
) -> Shape:
    """Detect a data set's shape from its first rows.

    Raises DataError if no format fits, several do, or a configured column is missing.
    """
    names = column_names(rows)
    columns = _mapped(mapping or {}, names, where)
    paired = {"chosen", "rejected"} <= set(names) and not mapping
    if requested == "preference" or (requested == "auto" and paired and not _answered(rows, columns)):
        raise DataError(codes.DATA_FORMAT_PREFERENCE(where, listed(names)))
    if requested != "auto":
        return _requested(requested, columns, names, where)
    # Without a configured format exactly one structured format, or plain text, must fit.
    candidates = _candidates(rows, columns)
    structured = [shape for shape in candidates if shape.format != TEXT]
    if len(candidates) == 1:
        return candidates[0]
    if len(structured) == 1:
        note = (
            f"column '{columns['text']}' is ignored: the rows are {structured[0].format} rows, and the text"
            " is assumed to be their rendering"
        )
        return replace(structured[0], note=note)
    if candidates:
        raise DataError(
            codes.DATA_FORMAT_AMBIGUOUS(
                f"the rows match more than one format: {', '.join(shape.format for shape in candidates)}",
                where,
                listed(names),
                f"set format: {candidates[0].format} (next to path:)",
            )
        )
    raise DataError(_unknown(names, where, rows, columns))


def check_mapping(
    mapping: Mapping[str, str], readable: Sequence[str], columns: Sequence[str], wrong: Diagnostic
) -> None:
    """Raise DataError, ``wrong``, if ``columns:`` has unknown names.

    Names on the left must be ``readable``, names on the right ``columns`` of the file. The hint names the
    nearest ones, if each has one.
    """
    missing = [n for n in mapping if n not in readable] + [n for n in mapping.values() if n not in columns]
    if missing:
        near = {_near(name, readable): _near(column, columns) for name, column in mapping.items()}
        line = f"columns: {{{', '.join(map(': '.join, near.items()))}}} (next to path:)"
        distinguishable = len(near) == len(mapping) and "" not in (*near, *near.values())
        message = f"columns: no such column ({', '.join(missing)})"
        raise DataError(replace(wrong, what=message, hint=line if distinguishable else wrong.hint))


def _near(name: str, names: Sequence[str]) -> str:
    return name if name in names else next(iter(difflib.get_close_matches(name, names, n=1)), "")


def _mapped(mapping: Mapping[str, str], names: Sequence[str], where: str) -> dict[str, str]:
    """Return format column -> name in the file; the user's mapping wins."""
    readable = sorted({c for must, may in COLUMNS.values() for c in (*must, *may)})
    # Other names of prompt and answer mean the same on the left: for rewards it is ``answer``.
    same = {
        n: column for pair in PAIRS for n, column in zip(pair, PAIRS[0], strict=True) if n not in readable
    }
    if len(renamed := {same.get(name, name): actual for name, actual in mapping.items()}) == len(mapping):
        mapping = renamed
    for name, actual in mapping.items():
        if name not in readable:
            near = _near(name, readable)
            remedy = f"one of {', '.join(readable)}: the format's column on the left, the file's on the right"
            remedy = f"did you mean '{near}'?" if near else remedy
            raise DataError(codes.DATA_COLUMN_UNKNOWN(where, f"{name}: {actual}", name=name, hint=remedy))
        if actual not in names:
            raise DataError(_missing([actual], names, where, f"columns: {name}: {actual}", name))
    taken = set(mapping.values())
    return {**{name: name for name in readable if name in names and name not in taken}, **mapping}


def _requested(requested: str, columns: dict[str, str], names: Sequence[str], where: str) -> Shape:
    must, _ = COLUMNS[requested]
    pair = next((p for p in PAIRS if set(p) <= set(names)), None)
    # The user's own names win over the known pairs
    if requested == "prompt_completion" and pair and not set(must) <= set(columns):
        columns = {"prompt": pair[0], "completion": pair[1], **columns}
    for column, other in (("messages", "conversations"), ("conversations", "messages")):
        if must == (column,) and column not in columns and other in columns:
            columns = {**columns, column: columns[other]}
    if missing := [name for name in must if name not in columns]:
        raise DataError(_missing(missing, names, where, f"format: {requested}"))
    return Shape(requested, columns)


def _candidates(rows: Sequence[Row], columns: dict[str, str]) -> list[Shape]:
    shapes: list[Shape] = []
    for name in ("messages", "conversations"):
        # The keys of the first turn tell messages from ShareGPT.
        turn = _first_turn(rows, columns[name]) if name in columns else None
        if turn is not None and {"role", "content"} <= set(turn):
            shapes.append(Shape("messages", {**columns, "messages": columns[name]}))
        elif turn is not None and {"from", "value"} <= set(turn):
            shapes.append(Shape("sharegpt", {**columns, "conversations": columns[name]}))
    if {"instruction", "output"} <= set(columns):
        shapes.append(Shape("alpaca", columns))
    # Prompt and answer under their own names, or under one of the known other pairs.
    if {"prompt", "completion"} <= set(columns):
        shapes.append(Shape("prompt_completion", columns))
    else:
        free = set(column_names(rows)) - {name for column, name in columns.items() if column != "prompt"}
        if pair := next((pair for pair in PAIRS[1:] if set(pair) <= free), None):
            note = f"'{pair[0]}' is read as the prompt and '{pair[1]}' as the answer"
            answered = {**columns, "prompt": pair[0], "completion": pair[1]}
            shapes.append(Shape("prompt_completion", answered, note))
    return [*shapes, Shape(TEXT, columns)] if "text" in columns else shapes


def _answered(rows: Sequence[Row], columns: Mapping[str, str]) -> bool:
    """Whether preference rows also hold a conversation that ends with the assistant, to train on."""
    values = (rows[0].get(columns.get(name, name)) for name in ("messages", "conversations"))
    lasts = (turns[-1] for turns in values if isinstance(turns, Sequence) and turns)
    return is_answer(next((turn for turn in lasts if isinstance(turn, Mapping)), None))


def _first_turn(rows: Sequence[Row], column: str) -> Row | None:
    values = (row.get(column) for row in rows)
    firsts = (turns[0] for turns in values if isinstance(turns, Sequence) and turns)
    return next((turn for turn in firsts if isinstance(turn, Mapping)), None)


#: What columns of turns are called; another one is taken for it if it is mapped, or the only column.
_TURN_COLUMNS = ("messages", "conversations", "conversation", "dialog", "dialogue", "turns", "chat")


def _other_shape(value: Cell) -> str:
    """Describe a value that should be a list of turns; empty for such a list, and for no value."""
    if isinstance(value, list):
        kinds = {kind_of_value(item) for item in value if not isinstance(item, Mapping)}
        return f"a list with {min(kinds)}" if kinds else ""
    return "" if is_empty(value) else kind_of_value(value)


def _missing(
    missing: Sequence[str], names: Sequence[str], where: str, requested: str, name: str = ""
) -> Diagnostic:
    near = _near(missing[0], names) or "NAME_IN_YOUR_FILE"
    remedy = f"columns: {{{name or missing[0]}: {near}}} (next to path:)"
    return codes.DATA_COLUMN_MISSING(
        where, listed(names), missing=", ".join(missing), requested=requested, hint=remedy
    )


def _unknown(names: Sequence[str], where: str, rows: Sequence[Row], columns: Mapping[str, str]) -> Diagnostic:
    """Explain why no format fits: pairs, another separator, turns with other keys; else list the formats."""
    if {"chosen", "rejected"} <= set(names):
        return codes.DATA_FORMAT_PREFERENCE(where, listed(names))
    if "input_ids" in names:
        return codes.DATA_FORMAT_UNKNOWN(
            "the rows are token ids, and Paceline reads texts: it tokenizes them, and finds what has loss",
            where,
            listed(names),
            "give the rows as they were before they were tokenized; or decode them: a column text with"
            " tokenizer.decode(input_ids), and format: text",
        )
    if len(names) == 1 and (mark := next((m for m in ";|\t" if m in names[0]), "")):
        return codes.DATA_FORMAT_UNKNOWN(
            f"the columns are separated by {mark!r}: a .csv file has commas between them, a .tsv file tabs",
            where,
            f"one column {names[0]!r}",
            f"write it anew: pandas.read_csv(FILE, sep={mark!r}).to_csv(NEW, index=False)",
        )
    mapped = {columns.get(name, name) for name in _TURN_COLUMNS}
    likely = [name for name in names if name in mapped or len(names) == 1]
    if turn := next(((name, keys) for name in likely if (keys := _first_turn(rows, name))), None):
        return codes.DATA_FORMAT_UNKNOWN(
            f"the turns in column '{turn[0]}' have neither role and content nor from and value",
            where,
            f"a turn's keys: {', '.join(turn[1])}",
            "set data.converter to a function that returns messages with role and content"
            " (docs/reference/library.md)",
        )
    shapes = ((name, _other_shape(row.get(name))) for name in likely for row in rows)
    other = next(((name, shape) for name, shape in shapes if shape), None)
    if other is not None and (other[0] in mapped or not other[1].endswith("text")):
        return codes.DATA_FORMAT_UNKNOWN(
            f"the turns in column '{other[0]}' are {other[1]}, not a list of turns",
            where,
            listed(names),
            "write each row's turns as a list of objects with role and content, or set data.converter"
            " (docs/reference/library.md)",
        )
    needs = "; ".join(f"{name}: {' + '.join(must)}" for name, (must, _) in COLUMNS.items())
    return codes.DATA_FORMAT_UNKNOWN(
        "the rows match no known format",
        where,
        listed(names),
        "name the columns next to path:, for example columns: {prompt: X, completion: Y}; the"
        f" formats need — {needs}",
    )


def normalise(row: Row, shape: Shape) -> Example:
    """Convert a row to an Example. Raises RowError if it cannot be used."""
    return _READERS[shape.format](row, shape.columns)


def _text(row: Row, columns: Mapping[str, str], name: str, *, needed: bool = False) -> str:
    actual = columns.get(name)
    value = row.get(actual) if actual is not None else None
    if value is None and needed:
        raise RowError("missing_column", f"no '{actual or name}'")
    return as_text(value, actual or name)


def _alpaca(row: Row, columns: Mapping[str, str]) -> Example:
    parts = [_text(row, columns, "instruction", needed=True), _text(row, columns, "input")]
    filled = [part for part in parts if part.strip()]
    question: Message = {"role": "user", "content": "\n".join(filled)}
    if len(filled) == len(parts):
        question["input"] = filled[1]
    answer: Message = {"role": "assistant", "content": _text(row, columns, "output", needed=True)}
    return _conversation([*_before(row, columns), question, answer])


def _prompt_completion(row: Row, columns: Mapping[str, str]) -> Example:
    question = turns_or_text(row.get(columns["prompt"]), columns["prompt"], "user")
    answer = turns_or_text(row.get(columns["completion"]), columns["completion"], "assistant")
    before = [*_before(row, columns), *question]
    example = _conversation([*before, *answer])
    # As in TRL, answers within a prompt of turns are its context; those of ``history`` are learnt.
    answered = any(turn["role"] == "assistant" for turn in question)
    return replace(example, learn_from=len(before)) if answered else example


def _turns(row: Row, columns: Mapping[str, str], *, column: str, role_key: str, text_key: str) -> Example:
    """Read the turns, after the system turn of the column ``system``, which may repeat the first."""
    name = columns[column]
    turns = turns_of(with_listed(row.get(name), row, name), role_key, text_key)
    system = system_of(row, columns)
    return _conversation(turns if system == turns[:1] else [*system, *turns])


def _plain(row: Row, columns: Mapping[str, str]) -> Example:
    text = _text(row, columns, "text", needed=True)
    if not text.strip():
        raise RowError("empty")
    return Example(text=text)


def _before(row: Row, columns: Mapping[str, str]) -> list[Message]:
    """Return the turns of the columns ``system`` and ``history``. Raises RowError."""
    messages = system_of(row, columns)
    history = row.get(columns["history"]) if "history" in columns else None
    if history is None:
        return messages
    for turn in history if isinstance(history, list) else [history]:
        if not isinstance(turn, Sequence) or isinstance(turn, str) or len(turn) != 2:
            raise RowError("bad_messages", "history is not a list of [question, answer] pairs")
        messages.append({"role": "user", "content": as_text(turn[0], "history")})
        messages.append({"role": "assistant", "content": as_text(turn[1], "history")})
    return messages


def system_of(row: Row, columns: Mapping[str, str]) -> list[Message]:
    """Return the system message from its own column, if any. Raises RowError."""
    text = _text(row, columns, "system")
    return [{"role": "system", "content": text}] if text.strip() else []


def _conversation(messages: list[Message]) -> Example:
    answers = [has_meaning(turn) for turn in messages if turn["role"] == "assistant"]
    context = [has_meaning(turn) for turn in messages if turn["role"] != "assistant"]
    if not any((*answers, *context)):
        raise RowError("empty")
    if not answers or not all(answers):
        raise RowError("no_answer", "an answer is empty" if answers else "no turn of the assistant")
    if context and not any(context):
        raise RowError("empty", "the question is empty")
    return Example(messages=tuple(messages))


_READERS: Mapping[str, Callable[[Row, Mapping[str, str]], Example]] = {
    "alpaca": _alpaca,
    "prompt_completion": _prompt_completion,
    "messages": partial(_turns, column="messages", role_key="role", text_key="content"),
    "sharegpt": partial(_turns, column="conversations", role_key="from", text_key="value"),
    TEXT: _plain,
}
