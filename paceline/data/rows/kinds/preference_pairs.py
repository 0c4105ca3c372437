"""Preference pairs: a prompt, a chosen and a rejected answer, in all common published forms.

The prompt is ``prompt`` (text or turns), ``conversations`` or ``messages`` (turns that end with a question),
or ``instruction`` with ``input``; without any of these it is the common beginning of both answers, as TRL
extracts it: turns of conversations, or text up to a blank. Beside a prompt they may be conversations, too:
what both begin with is the prompt then. Each answer is a text, one turn or a list of turns, with the
keys of ShareGPT (``from``, ``value``) or of messages (``role``, ``content``). ms-swift's ``messages`` with
``rejected_messages`` or ``rejected_response`` are chosen and rejected. ``margin``: by how much the chosen
answer is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.formats import Example, Shape, corrected
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.messages import Message, is_answer, says_something, turns_or_text
from paceline.data.rows.values import Cell, Row, RowError, as_text

TEXT, CONVERSATION = "preference", "preference_conversation"
ANSWERS = ("chosen", "rejected")
PROMPTS = ("conversations", "messages", "prompt", "instruction", "question", "query")
_TURNS = ("conversations", "messages")
_BESIDE = ("input", "system", "margin")
_SYSTEMS = ("system", "developer")
_REJECTED = ("rejected_messages", "rejected_response")  # beside ms-swift's "messages", which are the chosen


def detect_pairs(
    rows: Sequence[Row], *, where: str, requested: str = "auto", mapping: Mapping[str, str] | None = None
) -> Shape:
    """Detect the shape of pairs from the first rows.

    Raises DataError without ``chosen`` and ``rejected``, or with several prompts.
    """
    wrong = codes.DATA_FORMAT_PAIRS(where)
    alone = "the prompt is the common beginning of both answers"
    found = {name for row in rows for name in row}
    given = dict(mapping or {})
    rejected = next((name for name in _REJECTED if name in found), None)
    if rejected and not given and "messages" in found and not found & set(ANSWERS):
        given = {"chosen": "messages", "rejected": rejected}
    return detect_answers(rows, ANSWERS, _BESIDE, wrong, requested=requested, mapping=given, alone=alone)


def detect_answers(
    rows: Sequence[Row],
    needed: Sequence[str],
    beside: Sequence[str],
    wrong: Diagnostic,
    *,
    requested: str,
    mapping: Mapping[str, str],
    alone: str = "",
    spoken: bool = False,
) -> Shape:
    """Detect the shape of answers to a prompt, from required (``needed``) and optional (``beside``) columns.

    The first of ``needed`` is an answer, unless the prompt's turns hold it (``spoken``). ``alone``: note for
    rows without a prompt column (empty: one is required). Raises DataError, with
    ``wrong`` if columns are missing.
    """
    found = list(dict.fromkeys(name for row in rows for name in row))
    seen = f"columns {', '.join(found) or 'none'}"
    # The user's mapping must name known columns that exist; the rest is found by name.
    known = (*needed, *PROMPTS, *beside)
    if any(name not in known for name in mapping) or any(name not in found for name in mapping.values()):
        hint = corrected(mapping, known, found) or wrong.hint
        names = [n for n in mapping if n not in known] + [n for n in mapping.values() if n not in found]
        what = f"columns: no such column ({', '.join(names)})"
        raise DataError(replace(wrong, what=what, found=seen, hint=hint))
    columns = {**{name: name for name in known if name in found and name not in mapping.values()}, **mapping}
    prompts = [name for name in PROMPTS if name in columns]
    if any(name not in columns for name in needed) or requested == "text" or not (prompts or alone):
        raise DataError(replace(wrong, found=seen))
    prompts = _preferred(rows, prompts, columns, mapping, None if spoken else columns[needed[0]])
    if len(prompts) > 1:
        what = f"the prompt could be any of {', '.join(prompts)}"
        hint = f"columns: {{{prompts[0]}: {columns[prompts[0]]}}} (next to path:)"
        raise DataError(codes.DATA_FORMAT_AMBIGUOUS(what, wrong.where, seen, hint))
    # Turns or text? Only an instruction has an additional input.
    prompt = prompts[0] if prompts else None
    used = {name: columns[name] for name in (*needed, *beside) if name in columns}
    if prompt != "instruction":
        used.pop("input", None)
    if prompt is None:
        turns = any(isinstance(row.get(used[needed[0]]), (list, Mapping)) for row in rows)
        return Shape(CONVERSATION if turns else TEXT, used, alone)
    turns = any(isinstance(row.get(columns[prompt]), list) for row in rows)
    used[prompt] = columns[prompt]
    return Shape(CONVERSATION if turns else TEXT, used, f"the prompt is '{columns[prompt]}'")


def _preferred(
    rows: Sequence[Row],
    prompts: list[str],
    columns: Mapping[str, str],
    mapping: Mapping[str, str],
    answer: str | None,
) -> list[str]:
    """Return the columns that may be the prompt: the user's choice, then ``prompt``, then turns.

    Turns that end with an answer already are no prompt where the row has another one. ``answer``: the column
    with an answer; None if turns hold it.
    """
    named = [name for name in prompts if name in mapping]
    turns = [name for name in prompts if name in _TURNS]
    if named or answer is None:
        return named or turns or prompts
    open_ended = [name for name in turns if not any(_ends_answered(row.get(columns[name])) for row in rows)]
    rest = [name for name in prompts if name not in turns or name in open_ended]
    if not rest and any(_is_conversation(row.get(answer)) for row in rows):
        return []
    prompts = rest or prompts
    if "prompt" in prompts:
        differ = [n for n in open_ended if any(not _same(row, columns["prompt"], columns[n]) for row in rows)]
        return ["prompt", *differ]
    return [name for name in prompts if name in turns] or prompts


def _ends_answered(turns: Cell) -> bool:
    return isinstance(turns, list) and bool(turns) and is_answer(turns[-1])


def _is_conversation(turns: Cell) -> bool:
    """Whether an answer's turns begin with a question."""
    return isinstance(turns, list) and bool(turns) and not is_answer(turns[0])


def _same(row: Row, one: str, other: str) -> bool:
    """Whether two columns hold the same prompt; false if either is none."""
    try:
        return turns_or_text(row.get(one), one, "user") == turns_or_text(row.get(other), other, "user")
    except RowError:
        return False


def normalise_pair(row: Row, shape: Shape) -> tuple[Example, Example]:
    """Return (chosen, rejected): conversations with the same prompt and loss on the turns after it.

    Raises RowError.
    """
    columns = shape.columns
    prompt, answers = _split(row, columns)
    prompt = system_of(row, columns) + prompt
    # Both answers must have text, differ, and follow a prompt.
    for name, turns in zip(ANSWERS, answers, strict=True):
        spoken = [turn for turn in turns if turn["role"] == "assistant"]
        if not spoken or not all(says_something(turn) for turn in spoken):
            raise RowError("no_answer", f"'{columns[name]}' is empty")
    if not any(turn["content"].strip() for turn in prompt if turn["role"] == "user"):
        raise RowError("empty", "the prompt is empty")
    beside = _margin(row, columns)
    chosen, rejected = (
        Example(messages=(*prompt, *turns), learn_from=len(prompt), values=beside) for turns in answers
    )
    return chosen, rejected


def _split(row: Row, columns: Mapping[str, str]) -> tuple[list[Message], list[list[Message]]]:
    """Return the prompt and both answers, by column, or by what both begin with. Raises RowError."""
    given = [row.get(columns[name]) for name in ANSWERS]
    answers = [turns_or_text(row.get(columns[name]), columns[name], "assistant") for name in ANSWERS]
    prompt = prompt_of(row, columns)
    if prompt is None and all(isinstance(value, str) for value in given):
        return _split_texts(*(turns[0]["content"] for turns in answers))
    if prompt is None and not isinstance(given[1], (list, Mapping)):
        answers[1] = [*answers[0][:-1], *answers[1]]  # an answer to the chosen one's prompt
    if answers[0] == answers[1]:
        raise RowError("same_answers")
    shared = _shared(*answers)
    if prompt is None:
        return answers[0][:shared], [turns[shared:] for turns in answers]
    if all(turns and turns[0]["role"] in ("user", *_SYSTEMS) for turns in answers):
        begins = _with_systems(prompt, answers[0][:shared])
        return begins, [turns[shared:] for turns in answers]
    return after_prompt(prompt, answers)


def _split_texts(chosen: str, rejected: str) -> tuple[list[Message], list[list[Message]]]:
    """Return the common beginning of two texts and what follows, cut as TRL cuts, but never within a word."""
    if chosen == rejected:
        raise RowError("same_answers")
    pairs = enumerate(zip(chosen, rejected, strict=False))
    differs = next((n for n, (one, other) in pairs if one != other), None)
    at = max(min(len(chosen), len(rejected)) - 1, 0) if differs is None else differs
    if not chosen[:at][-1:].isspace() and not (chosen[at : at + 1] + rejected[at : at + 1]).isspace():
        while at and not chosen[at - 1].isspace():
            at -= 1
        differs = at
    if differs and chosen[at - 1] == " ":  # the blank belongs to the answer
        at -= 1
    answers: list[list[Message]] = [
        [{"role": "assistant", "content": text[at:]}] for text in (chosen, rejected)
    ]
    return [{"role": "user", "content": chosen[:at]}], answers


def _with_systems(prompt: list[Message], begins: list[Message]) -> list[Message]:
    """Return what both answers begin with, after system turns of the prompt that it lacks.

    Raises RowError if the prompt is no part of it.
    """
    questions = [_role_and_text(turn) for turn in prompt if turn["role"] not in _SYSTEMS]
    found = [_role_and_text(turn) for turn in begins if turn["role"] not in _SYSTEMS]
    if not any(found[n : n + len(questions)] == questions for n in range(len(found) - len(questions) + 1)):
        raise RowError("other_prompt", "the answers begin with a question that is not the prompt")
    return [turn for turn in prompt if turn["role"] in _SYSTEMS and turn not in begins] + begins


def after_prompt(
    prompt: list[Message], answers: list[list[Message]]
) -> tuple[list[Message], list[list[Message]]]:
    """Return prompt and answers, where the answers may be conversations that repeat the prompt.

    They may have a system turn that the prompt lacks. Raises RowError if they begin with another question, or
    if the prompt ends with an answer already.
    """
    questions = [_role_and_text(turn) for turn in prompt if turn["role"] not in _SYSTEMS]
    if prompt and prompt[-1]["role"] == "assistant":
        raise RowError("other_prompt", "the prompt ends with an answer of the assistant")
    for length in range(len(questions), len(prompt) + 2):
        begins = [turns[:length] for turns in answers]
        repeated = [_role_and_text(turn) for turn in begins[0] if turn["role"] not in _SYSTEMS]
        if questions and repeated == questions and all(begin == begins[0] for begin in begins):
            own = [turn for turn in prompt if turn["role"] in _SYSTEMS and turn not in begins[0]]
            return own + begins[0], [turns[length:] for turns in answers]
    spoken = [turns for turns in answers if any(turn["role"] == "assistant" for turn in turns)]
    if any(turns[0]["role"] in ("user", *_SYSTEMS) for turns in spoken):
        raise RowError("other_prompt", "the answers begin with a question that is not the prompt")
    return prompt, answers


def _role_and_text(turn: Message) -> tuple[str, str]:
    return turn["role"], turn["content"].strip()


def prompt_of(row: Row, columns: Mapping[str, str]) -> list[Message] | None:
    """Return the turns before the answers; None if no column holds them. Raises RowError."""
    name = next((name for name in PROMPTS if name in columns), None)
    if name is None:
        return None
    if row.get(columns[name]) is None:
        raise RowError("missing_column", f"no '{columns[name]}'")
    turns = turns_or_text(row[columns[name]], columns[name], "user")
    more = row.get(columns["input"]) if "input" in columns else None
    if more and turns:
        text = as_text(more, columns["input"])
        turns[-1] = {**turns[-1], "content": "\n".join(t for t in (turns[-1]["content"], text) if t.strip())}
    return turns


def _shared(one: list[Message], other: list[Message]) -> int:
    """Return the number of leading turns that both conversations share; at least a turn of each remains."""
    count, most = 0, min(len(one), len(other)) - 1
    while count < most and one[count] == other[count]:
        count += 1
    return count


def system_of(row: Row, columns: Mapping[str, str]) -> list[Message]:
    """Return the system message from its own column, if any."""
    text = as_text(row.get(columns["system"]), columns["system"]) if "system" in columns else ""
    return [{"role": "system", "content": text}] if text.strip() else []


def _margin(row: Row, columns: Mapping[str, str]) -> dict[str, float]:
    value = row.get(columns["margin"]) if "margin" in columns else None
    if value is None:
        return {}
    margin = math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):  # CSV has texts alone
        with suppress(ValueError, OverflowError):
            margin = float(value)
    if not math.isfinite(margin):
        raise RowError("bad_margin", f"'{columns['margin']}' is {value!r}")
    return {"margin": margin}


class Pairs(RowKind):
    """Two documents per row, chosen and rejected, with loss on the answers only."""

    stored_name = "pairs"
    words = "preference pairs"
    group = 2
    columns = ("margin",)
    conversations = frozenset({CONVERSATION})

    def detect(
        self, rows: Sequence[Row], *, where: str, requested: str, mapping: Mapping[str, str] | None
    ) -> Shape:
        return detect_pairs(rows, where=where, requested=requested, mapping=mapping)

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        return normalise_pair(row, shape)

    def trained_tokens(self, train_on: str) -> str:
        return "assistant"

    def same(self, documents: Sequence[Iterable[int]]) -> bool:
        chosen, rejected = documents
        return list(chosen) == list(rejected)


PAIRS = Pairs()
