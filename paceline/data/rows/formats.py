"""Row formats: detected from the rows, and normalised to a conversation or a plain text."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.json_types import Json, JsonObject
from paceline.data import codes
from paceline.data.rows.messages import (
    Message,
    is_answer,
    kind_of_value,
    says_something,
    turns_of,
    turns_or_text,
    with_listed,
)
from paceline.data.rows.values import Cell, Row, RowError, as_text, is_empty

TEXT = "text"  # the format without a conversation
# format -> (required columns, optional columns)
COLUMNS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "messages": (("messages",), ("system",)),
    "sharegpt": (("conversations",), ("system",)),
    "alpaca": (("instruction", "output"), ("input", "system", "history")),
    "prompt_completion": (("prompt", "completion"), ("system", "history")),
    TEXT: (("text",), ()),
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

    ``note``: what was assumed.
    """

    format: str
    columns: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True)
class Example:
    """A normalised row: ``messages`` (a conversation) or ``text``.

    Assistant turns have loss from turn ``learn_from`` on; ``values``: extra numbers by name; ``facts``: JSON
    about a prompt that the model answers itself, for reward functions. ``tools`` (JSON schemas),
    ``documents`` and ``template_kwargs`` are for the chat template.
    """

    messages: tuple[Message, ...] = ()
    text: str = ""
    learn_from: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    facts: str = ""
    tools: tuple[JsonObject, ...] = ()
    documents: tuple[JsonObject, ...] = ()
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """The text before the first answer, or all of a plain text.

        Rows with equal prompts stay in one split.
        """
        if not self.messages:
            return self.text
        turns: list[str] = []
        for number, message in enumerate(self.messages):
            if message["role"] == "assistant" and number >= self.learn_from:
                break
            turns.append(f"{message['role']}\n{message['content']}")
        return "\n".join(turns)


def detect(
    rows: Sequence[Row], *, where: str, requested: str = "auto", mapping: Mapping[str, str] | None = None
) -> Shape:
    """Detect a data set's shape from its first rows.

    Raises DataError if no format fits, several do, or a configured column is missing.
    """
    found = list(dict.fromkeys(name for row in rows for name in row))
    columns = _mapped(mapping or {}, found, where)
    # A configured format decides; a preference data set cannot be used here.
    if requested == "preference":
        raise DataError(_preference(found, where))
    if requested != "auto":
        return _requested(requested, columns, found, where)
    if {"chosen", "rejected"} <= set(found) and not mapping and not _answered(rows, columns):
        raise DataError(_unknown(found, where))
    # Without a configured format exactly one structured format, or plain text, must fit.
    candidates = _candidates(rows, columns)
    structured = [c for c in candidates if c.format != "text"]
    if len(structured) == 1 or (len(candidates) == 1):
        chosen = (structured or candidates)[0]
        if structured and len(candidates) > 1:
            note = (
                f"column '{chosen.columns.get('text', 'text')}' is ignored: the rows are"
                f" {chosen.format} rows, and the text is assumed to be their rendering"
            )
            return Shape(chosen.format, chosen.columns, note)
        return chosen
    if candidates:
        names = ", ".join(c.format for c in candidates)
        raise DataError(
            codes.DATA_FORMAT_AMBIGUOUS(
                f"the rows match more than one format: {names}",
                where,
                f"columns {_listed(found)}",
                f"set format: {candidates[0].format} (next to path:)",
            )
        )
    raise DataError(_unknown(found, where, rows, columns))


def corrected(mapping: Mapping[str, str], known: Sequence[str], found: Sequence[str]) -> str:
    """Return the line ``columns:`` with the nearest names for those that are neither ``known`` (left) nor
    ``found`` (right); empty if one has none near.
    """
    pairs = {_near(name, known): _near(column, found) for name, column in mapping.items()}
    if "" in pairs or "" in pairs.values() or len(pairs) < len(mapping):
        return ""
    return f"columns: {{{', '.join(f'{name}: {column}' for name, column in pairs.items())}}} (next to path:)"


def _near(name: str, names: Sequence[str]) -> str:
    return name if name in names else next(iter(difflib.get_close_matches(name, names, n=1)), "")


def _mapped(mapping: Mapping[str, str], found: Sequence[str], where: str) -> dict[str, str]:
    """Return format column -> name in the file; the user's mapping wins."""
    known = sorted({c for must, may in COLUMNS.values() for c in (*must, *may)})
    for name, actual in mapping.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"did you mean '{near[0]}'?"
                if near
                else f"one of {', '.join(known)}: the format's column on the left, the file's on the right"
            )
            raise DataError(codes.DATA_COLUMN_UNKNOWN(where, f"{name}: {actual}", name=name, hint=hint))
        if actual not in found:
            raise DataError(_missing([actual], found, where, f"columns: {name}: {actual}", name))
    taken = set(mapping.values())
    return {**{name: name for name in known if name in found and name not in taken}, **mapping}


def _requested(requested: str, columns: dict[str, str], found: Sequence[str], where: str) -> Shape:
    must, _ = COLUMNS[requested]
    columns = dict(columns)
    pair = next((p for p in PAIRS if set(p) <= set(found)), None)
    if requested == "prompt_completion" and pair and not set(must) <= set(columns):
        columns = {"prompt": pair[0], "completion": pair[1], **columns}
    for wanted, other in (("messages", "conversations"), ("conversations", "messages")):
        if must == (wanted,) and wanted not in columns and other in columns:
            columns[wanted] = columns[other]
    missing = [name for name in must if name not in columns]
    if missing:
        raise DataError(_missing(missing, found, where, f"format: {requested}"))
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
        names = {name for row in rows for name in row} - set(columns.values())
        names |= {columns[n] for n in ("prompt",) if n in columns}
        for prompt, completion in PAIRS[1:]:
            if {prompt, completion} <= names:
                note = f"'{prompt}' is read as the prompt and '{completion}' as the answer"
                shapes.append(
                    Shape("prompt_completion", {**columns, "prompt": prompt, "completion": completion}, note)
                )
                break
    if "text" in columns:
        shapes.append(Shape("text", columns))
    return shapes


def _answered(rows: Sequence[Row], columns: Mapping[str, str]) -> bool:
    """Whether preference rows also hold a conversation that ends with the assistant, to train on."""
    for name in ("messages", "conversations"):
        turns = rows[0].get(columns.get(name, name))
        if isinstance(turns, Sequence) and turns and isinstance(turns[-1], Mapping):
            return is_answer(turns[-1])
    return False


def _first_turn(rows: Sequence[Row], column: str) -> Row | None:
    for row in rows:
        turns = row.get(column)
        if (
            isinstance(turns, Sequence)
            and not isinstance(turns, str)
            and turns
            and isinstance(turns[0], Mapping)
        ):
            return turns[0]
    return None


#: What columns of turns are called; another one is taken for it if it is mapped, or the only column.
_TURN_COLUMNS = ("messages", "conversations", "conversation", "dialog", "dialogue", "turns", "chat")


def _other_shape(value: Cell) -> str:
    """Say what stands where a list of turns should; empty for such a list, and for nothing."""
    if isinstance(value, list):
        kinds = {kind_of_value(item) for item in value if not isinstance(item, Mapping)}
        return f"a list with {min(kinds)}" if kinds else ""
    return "" if is_empty(value) else kind_of_value(value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _missing(
    missing: Sequence[str], found: Sequence[str], where: str, requested: str, name: str = ""
) -> Diagnostic:
    near = difflib.get_close_matches(missing[0], found, n=1)
    hint = f"columns: {{{name or missing[0]}: {near[0] if near else 'NAME_IN_YOUR_FILE'}}} (next to path:)"
    return codes.DATA_COLUMN_MISSING(
        where, f"columns {_listed(found)}", missing=", ".join(missing), requested=requested, hint=hint
    )


def _unknown(
    found: Sequence[str], where: str, rows: Sequence[Row] = (), columns: Mapping[str, str] | None = None
) -> Diagnostic:
    """Say why no format fits: pairs, another separator, turns with other keys; else name the formats."""
    needs = "; ".join(f"{name}: {' + '.join(must)}" for name, (must, _) in COLUMNS.items())
    if {"chosen", "rejected"} <= set(found):
        return _preference(found, where)
    if len(found) == 1 and (mark := next((m for m in ";|\t" if m in found[0]), "")):
        what = f"the columns are separated by {mark!r}: a .csv file has commas between them, a .tsv file tabs"
        hint = f"write it anew: pandas.read_csv(FILE, sep={mark!r}).to_csv(NEW, index=False)"
        return codes.DATA_FORMAT_UNKNOWN(what, where, f"one column {found[0]!r}", hint)
    mapped = {(columns or {}).get(name, name) for name in _TURN_COLUMNS}
    listed = [name for name in found if name in mapped or len(found) == 1]
    turn = next(((name, keys) for name in listed if (keys := _first_turn(rows, name))), None)
    if turn is not None:
        what = f"the turns in column '{turn[0]}' have neither role and content nor from and value"
        hint = (
            "set data.converter to a function that returns messages with role and content (docs/library.md)"
        )
        return codes.DATA_FORMAT_UNKNOWN(what, where, f"a turn's keys: {_listed(list(turn[1]))}", hint)
    shapes = ((name, _other_shape(row.get(name))) for name in listed for row in rows)
    other = next(((name, shape) for name, shape in shapes if shape), None)
    if other is not None and (other[0] in mapped or not other[1].endswith("text")):
        what = f"the turns in column '{other[0]}' are {other[1]}, not a list of turns"
        hint = (
            "write each row's turns as a list of objects with role and content, or set data.converter"
            " (docs/library.md)"
        )
        return codes.DATA_FORMAT_UNKNOWN(what, where, f"columns {_listed(found)}", hint)
    hint = (
        "name the columns next to path:, for example columns: {prompt: X, completion: Y}; the"
        f" formats need — {needs}"
    )
    return codes.DATA_FORMAT_UNKNOWN(
        "the rows match no known format", where, f"columns {_listed(found)}", hint
    )


def _preference(found: Sequence[str], where: str) -> Diagnostic:
    return codes.DATA_FORMAT_PREFERENCE(where, f"columns {_listed(found)}")


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
    messages = _before(row, columns)
    parts = [_text(row, columns, "instruction", needed=True), _text(row, columns, "input")]
    messages.append(_message("user", "\n".join(part for part in parts if part.strip())))
    messages.append(_message("assistant", _text(row, columns, "output", needed=True)))
    return _conversation(messages)


def _prompt_completion(row: Row, columns: Mapping[str, str]) -> Example:
    for name in ("prompt", "completion"):
        if row.get(columns[name]) is None:
            raise RowError("missing_column", f"no '{columns[name]}'")
    question = turns_or_text(row[columns["prompt"]], columns["prompt"], "user")
    answer = turns_or_text(row[columns["completion"]], columns["completion"], "assistant")
    before = [*_before(row, columns), *question]
    example = _conversation([*before, *answer])
    # As in TRL, answers within a prompt of turns are its context; those of ``history`` are learnt.
    answered = any(turn["role"] == "assistant" for turn in question)
    return replace(example, learn_from=len(before)) if answered else example


def _messages(row: Row, columns: Mapping[str, str]) -> Example:
    name = columns["messages"]
    turns = turns_of(with_listed(row.get(name), row, name), "role", "content")
    return _conversation(_with_system(row, columns, turns))


def _sharegpt(row: Row, columns: Mapping[str, str]) -> Example:
    name = columns["conversations"]
    turns = turns_of(with_listed(row.get(name), row, name), "from", "value")
    return _conversation(_with_system(row, columns, turns))


def _plain(row: Row, columns: Mapping[str, str]) -> Example:
    text = _text(row, columns, "text", needed=True)
    if not text.strip():
        raise RowError("empty")
    return Example(text=text)


def _before(row: Row, columns: Mapping[str, str]) -> list[Message]:
    """Return the turns of the columns ``system`` and ``history``. Raises RowError."""
    messages = _system(row, columns)
    history = row.get(columns["history"]) if "history" in columns else None
    if history is not None and not isinstance(history, list):
        raise RowError("bad_messages", "history is not a list of [question, answer] pairs")
    for turn in history or []:
        if not isinstance(turn, Sequence) or isinstance(turn, str) or len(turn) != 2:
            raise RowError("bad_messages", "history is not a list of [question, answer] pairs")
        messages += [
            _message("user", as_text(turn[0], "history")),
            _message("assistant", as_text(turn[1], "history")),
        ]
    return messages


def _system(row: Row, columns: Mapping[str, str]) -> list[Message]:
    text = _text(row, columns, "system")
    return [_message("system", text)] if text.strip() else []


def _with_system(row: Row, columns: Mapping[str, str], turns: list[Message]) -> list[Message]:
    """Return turns with the one of the column ``system``, which may repeat the first."""
    system = _system(row, columns)
    return turns if system == turns[:1] else [*system, *turns]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _conversation(messages: list[Message]) -> Example:
    if not any(says_something(m) for m in messages):
        raise RowError("empty")
    answers = [m for m in messages if m["role"] == "assistant"]
    if not answers:
        raise RowError("no_answer", "no turn of the assistant")
    if not all(says_something(m) for m in answers):
        raise RowError("no_answer", "an answer is empty")
    context = [m for m in messages if m["role"] != "assistant"]
    if context and not any(says_something(m) for m in context):
        raise RowError("empty", "the question is empty")
    return Example(messages=tuple(messages))


_READERS = {
    "alpaca": _alpaca,
    "prompt_completion": _prompt_completion,
    "messages": _messages,
    "sharegpt": _sharegpt,
    TEXT: _plain,
}
