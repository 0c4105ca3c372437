"""Preference pairs: a prompt, a chosen and a rejected answer, in all common published forms.

The prompt is ``prompt`` (text or turns), ``conversations`` or ``messages`` (turns), or ``instruction`` with
``input``; without any of these the two answers are full conversations with a common beginning (TRL's implicit
prompt); beside a prompt they may be such, too. Each answer is a text, one turn or a list of turns, with the
keys of ShareGPT (``from``, ``value``) or of messages (``role``, ``content``). ms-swift's ``messages`` with
``rejected_messages`` or ``rejected_response`` are chosen and rejected. ``margin``: by how much the chosen
answer is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.cells import Row, RowError, as_text
from paceline.data.formats import Example, Shape
from paceline.data.kinds.base import RowKind
from paceline.data.turns import Message, says_something, turns_or_text

TEXT, CONVERSATION = "preference", "preference_conversation"
ANSWERS = ("chosen", "rejected")
PROMPTS = ("conversations", "messages", "prompt", "instruction", "question", "query")
_BESIDE = ("input", "system", "margin")
_SYSTEMS = ("system", "developer")
_REJECTED = ("rejected_messages", "rejected_response")  # beside ms-swift's "messages", which are the chosen


def detect_pairs(
    rows: Sequence[Row], *, where: str, requested: str = "auto", mapping: Mapping[str, str] | None = None
) -> Shape:
    """Detect the shape of pairs from the first rows.

    Raises DataError without ``chosen`` and ``rejected``, or with several prompts.
    """
    what = "the rows are not preference pairs (chosen, rejected)"
    hint = (
        "columns: {chosen: X, rejected: Y, prompt: Z} (next to path:), where X, Y and Z are names in the file"
    )
    wrong = codes.DATA_FORMAT_PAIRS(what, where, hint=hint)
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
) -> Shape:
    """Detect the shape of answers to a prompt, from required (``needed``) and optional (``beside``) columns.

    ``alone``: note for rows without a prompt column (empty: one is required). Raises DataError, with
    ``wrong`` if columns are missing.
    """
    found = list(dict.fromkeys(name for row in rows for name in row))
    seen = f"columns {', '.join(found) or 'none'}"
    # The user's mapping must name known columns that exist; the rest is found by name.
    known = (*needed, *PROMPTS, *beside)
    if any(name not in known for name in mapping) or any(name not in found for name in mapping.values()):
        raise DataError(replace(wrong, what="columns: no such column", found=seen))
    columns = {**{name: name for name in known if name in found and name not in mapping.values()}, **mapping}
    prompts = [name for name in PROMPTS if name in columns]
    if any(name not in columns for name in needed) or requested == "text" or not (prompts or alone):
        raise DataError(replace(wrong, found=seen))
    if len(prompts) > 1:
        # Several candidates: prefer the user's choice, then turns.
        prompts = _preferred(prompts, mapping)
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
        return Shape(CONVERSATION, used, alone)
    turns = any(isinstance(row.get(columns[prompt]), list) for row in rows)
    used[prompt] = columns[prompt]
    return Shape(CONVERSATION if turns else TEXT, used, f"the prompt is '{columns[prompt]}'")


def _preferred(prompts: list[str], mapping: Mapping[str, str]) -> list[str]:
    """Prefer prompts that the user mapped, then turns over the text they were taken from."""
    named = [name for name in prompts if name in mapping]
    turns = [name for name in prompts if name in ("conversations", "messages")]
    return named or turns or prompts


def normalise_pair(row: Row, shape: Shape) -> tuple[Example, Example]:
    """Return (chosen, rejected): conversations with the same prompt and loss on the turns after it.

    Raises RowError.
    """
    columns = shape.columns
    # Split into prompt and answers: by column, or by the turns that both conversations share.
    answers = [turns_or_text(row.get(columns[name]), columns[name], "assistant") for name in ANSWERS]
    prompt = prompt_of(row, columns)
    if prompt is None:
        if not isinstance(
            row.get(columns[ANSWERS[1]]), (list, Mapping)
        ):  # an answer to the chosen one's prompt
            answers[1] = [*answers[0][:-1], *answers[1]]
        shared = _shared(*answers)
        prompt, answers = answers[0][:shared], [turns[shared:] for turns in answers]
    else:
        prompt, answers = after_prompt(prompt, answers)
    prompt = system_of(row, columns) + prompt
    # Both answers must have text, differ, and follow a prompt.
    for name, turns in zip(ANSWERS, answers, strict=True):
        spoken = [turn for turn in turns if turn["role"] == "assistant"]
        if not spoken or not all(says_something(turn) for turn in spoken):
            raise RowError("no_answer", f"'{columns[name]}' is empty")
    if answers[0] == answers[1]:
        raise RowError("same_answers")
    if not any(turn["content"].strip() for turn in prompt if turn["role"] == "user"):
        raise RowError("empty", "the prompt is empty")
    beside = _margin(row, columns)
    chosen, rejected = (
        Example(messages=(*prompt, *turns), learn_from=len(prompt), values=beside) for turns in answers
    )
    return chosen, rejected


def after_prompt(
    prompt: list[Message], answers: list[list[Message]]
) -> tuple[list[Message], list[list[Message]]]:
    """Return prompt and answers, where the answers may be conversations that repeat the prompt.

    They may have a system turn that the prompt lacks. Raises RowError if they begin with another question.
    """
    questions = [_role_and_text(turn) for turn in prompt if turn["role"] not in _SYSTEMS]
    for length in range(len(questions), len(prompt) + 2):
        begins = [turns[:length] for turns in answers]
        repeated = [_role_and_text(turn) for turn in begins[0] if turn["role"] not in _SYSTEMS]
        if questions and repeated == questions and all(begin == begins[0] for begin in begins):
            own = [turn for turn in prompt if turn["role"] in _SYSTEMS and turn not in begins[0]]
            return own + begins[0], [turns[length:] for turns in answers]
    first = {turns[0]["role"] for turns in answers if any(turn["role"] == "assistant" for turn in turns)}
    if prompt and prompt[-1]["role"] == "user" and first & {"user", *_SYSTEMS}:
        raise RowError("bad_messages", "the answers begin with a question that is not the prompt")
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
    """Return the number of leading turns that both conversations share."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
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
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RowError("bad_margin", f"'{columns['margin']}' is {value!r}")
    return {"margin": float(value)}


class Pairs(RowKind):
    """Two documents per row, chosen and rejected, with loss on the answers only."""

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
