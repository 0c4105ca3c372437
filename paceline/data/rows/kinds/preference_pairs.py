"""Preference pairs: a prompt, a chosen and a rejected answer, in all common published forms.

The prompt is ``prompt`` (text or turns), ``conversations`` or ``messages`` (turns that end with a question),
or ``instruction`` with ``input``. Without any of these it is the common beginning of both answers, as TRL
extracts it: turns of conversations, or text up to a blank. Such texts are tokenized as they are, without a
chat template, hh-rlhf's transcripts too. With a prompt column both answers may be conversations: their common
beginning is then the prompt. A text ``prompt`` that is a transcript (``Human:``, ``Assistant:``) is read as
turns.

Each answer is a text, one turn or a list of turns, with the keys of ShareGPT (``from``, ``value``) or of
messages (``role``, ``content``). ms-swift's ``messages`` with
``rejected_messages`` or ``rejected_response`` are chosen and rejected. ``margin``: by how much the chosen
answer is better.

Transcripts in one text, as hh-rlhf publishes them: paragraphs that begin with Human: or Assistant:.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.formats import (
    IMAGE_COLUMNS,
    PAIR_TEXT,
    Example,
    Shape,
    check_mapping,
    column_names,
    listed,
    system_of,
)
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.messages import Message, has_meaning, is_answer, is_list_of_texts, turns_or_text
from paceline.data.rows.row_errors import ROW_FOR_EACH
from paceline.data.rows.values import Cell, Row, RowError, as_text

_ROLES = {"Human": "user", "Assistant": "assistant"}
_MARK = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")


def turns_in(text: str) -> list[Message]:
    """Return the turns of a transcript without the blanks around each; [] for another text.

    It begins with Human: and has a paragraph with Assistant:. An empty one at the end opens the answer, and
    is no turn.
    """
    marks = list(_MARK.finditer(text))
    roles = [_ROLES[mark.group(1)] for mark in marks]
    if not marks or marks[0].start() or roles[0] != "user" or "assistant" not in roles:
        return []
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    turns: list[Message] = [
        {"role": role, "content": text[mark.end() : end].strip()}
        for role, mark, end in zip(roles, marks, ends, strict=True)
    ]
    return turns[:-1] if roles[-1] == "assistant" and not turns[-1]["content"] else turns


def is_open(turns: list[Message]) -> bool:
    """Whether a transcript asks for an answer."""
    return bool(turns) and turns[-1]["role"] == "user"


TEXT, CONVERSATION = "preference", "preference_conversation"
ANSWERS = ("chosen", "rejected")
PROMPTS = ("conversations", "messages", "prompt", "instruction", "question", "query")
_TURNS = ("conversations", "messages")

_SYSTEMS = ("system", "developer")
_REJECTED = ("rejected_messages", "rejected_response")  # beside ms-swift's "messages", which are the chosen


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

    The first of ``needed`` is an answer, unless the prompt's turns hold it (``spoken``). ``alone``: the note
    for rows without a prompt column (empty: it is required). Raises DataError, with ``wrong`` if columns are
    missing.
    """
    names, beside = column_names(rows), (*beside, *IMAGE_COLUMNS)
    wrong = replace(wrong, found=listed(names))
    # The user's mapping must name known columns that exist; the rest is found by name.
    readable = (*needed, *PROMPTS, *beside)
    check_mapping(mapping, readable, names, wrong)
    free = [name for name in readable if name in names and name not in mapping.values()]
    columns = {**dict(zip(free, free, strict=True)), **mapping}
    prompts = [name for name in PROMPTS if name in columns]
    if any(name not in columns for name in needed) or requested == "text" or not (prompts or alone):
        raise DataError(wrong)
    prompts = _preferred(rows, prompts, columns, mapping, None if spoken else columns[needed[0]])
    if len(prompts) > 1:
        raise DataError(
            codes.DATA_FORMAT_AMBIGUOUS(
                f"the prompt could be any of {', '.join(prompts)}",
                wrong.where,
                wrong.found,
                f"columns: {{{prompts[0]}: {columns[prompts[0]]}}} (next to path:)",
            )
        )
    # Turns or text? Only an instruction has an additional input.
    used = {name: columns[name] for name in (*needed, *beside) if name in columns}
    if prompts != ["instruction"]:
        used.pop("input", None)
    if not prompts:
        return _without_prompt(rows, used, needed, alone)
    prompt = columns[prompts[0]]
    turns = any(isinstance(row.get(prompt), list) for row in rows)
    note = f"the prompt is '{prompt}'"
    if any(isinstance(value := row.get(prompt), str) and is_open(turns_in(value)) for row in rows):
        note += ", and its transcripts (Human:, Assistant:) are read as turns"
    return Shape(CONVERSATION if turns else TEXT, {**used, prompts[0]: prompt}, note)


def _without_prompt(rows: Sequence[Row], used: dict[str, str], needed: Sequence[str], note: str) -> Shape:
    """Return the shape of rows whose answers hold the prompt: turns or plain texts."""
    texts = [row.get(used[name]) for row in rows for name in needed]
    if any(isinstance(value, (list, Mapping)) for value in texts):
        return Shape(CONVERSATION, used, note)
    used.pop("system", None)
    note = f"{note}, and no chat template is applied to these plain texts"
    return Shape(PAIR_TEXT, used, note)


def _preferred(
    rows: Sequence[Row],
    prompts: list[str],
    columns: Mapping[str, str],
    mapping: Mapping[str, str],
    answer: str | None,
) -> list[str]:
    """Return the candidate columns for the prompt: the user's choice, then ``prompt``, then turns.

    Turns that already end with an answer are no prompt if the row has another candidate. ``answer``: the
    column with an answer; None if turns hold it.
    """
    mapped = [name for name in prompts if name in mapping]
    turns = [name for name in prompts if name in _TURNS]
    if mapped or answer is None:
        return mapped or turns or prompts
    ended = {name for name in turns if any(is_answer(turn) for turn in _ends(rows, columns[name], -1))}
    rest = [name for name in prompts if name not in ended]
    if not rest and not all(is_answer(turn) for turn in _ends(rows, answer, 0)):
        return []  # the answers are whole conversations: their turns begin with a question
    prompts = rest or prompts
    if "prompt" not in prompts:
        return [name for name in prompts if name in turns] or prompts
    open_ended = [name for name in turns if name not in ended]
    return [
        "prompt",
        *(n for n in open_ended if any(not _same(row, columns["prompt"], columns[n]) for row in rows)),
    ]


def _ends(rows: Sequence[Row], column: str, end: int) -> Iterator[Cell]:
    """Yield the first (0) or the last (-1) turn of each row's column, if it holds turns."""
    values = (row.get(column) for row in rows)
    yield from (turns[end] for turns in values if isinstance(turns, list) and turns)


def _same(row: Row, first: str, second: str) -> bool:
    """Whether two columns hold the same prompt; false if either is none."""
    try:
        return turns_or_text(row.get(first), first, "user") == turns_or_text(row.get(second), second, "user")
    except RowError:
        return False


def _split(row: Row, columns: Mapping[str, str]) -> tuple[list[Message], list[list[Message]]]:
    """Return the prompt and both answers, by column, or by what both begin with. Raises RowError."""
    values = [row.get(columns[name]) for name in ANSWERS]
    answers = [turns_or_text(row.get(columns[name]), columns[name], "assistant") for name in ANSWERS]
    prompt = prompt_of(row, columns)
    if prompt is None and all(isinstance(value, str) for value in values):
        raise RowError("bad_messages", "a text without a prompt beside rows of turns")
    if prompt is None and not isinstance(values[1], (list, Mapping)):
        answers[1] = [*answers[0][:-1], *answers[1]]  # an answer to the chosen one's prompt
    if answers[0] == answers[1]:
        raise RowError("same_answers")
    shared = _shared(*answers)
    if prompt is None:
        return answers[0][:shared], [turns[shared:] for turns in answers]
    if all(turns and turns[0]["role"] in ("user", *_SYSTEMS) for turns in answers):
        return _with_systems(prompt, answers[0][:shared]), [turns[shared:] for turns in answers]
    return after_prompt(prompt, answers)


def _common_characters(chosen: str, rejected: str) -> int:
    """Return the length of two texts' common prompt, as in TRL, but never ending within a word.

    Raises RowError.
    """
    if chosen == rejected:
        raise RowError("same_answers")
    pairs = enumerate(zip(chosen, rejected, strict=False))
    differs = next((n for n, (a, b) in pairs if a != b), None)
    # Where nothing differs TRL's loop ends one before the shorter text's end
    end = max(min(len(chosen), len(rejected)) - 1, 0) if differs is None else differs
    if not chosen[:end][-1:].isspace() and not (chosen[end : end + 1] + rejected[end : end + 1]).isspace():
        while end and not chosen[end - 1].isspace():
            end -= 1
        differs = end
    if differs and chosen[end - 1] == " ":  # the blank belongs to the answer
        end -= 1
    return end


def _with_systems(prompt: list[Message], begins: list[Message]) -> list[Message]:
    """Return the answers' common beginning, with the prompt's system turns before it if it lacks them.

    Raises RowError if it does not contain the prompt.
    """
    questions = [_role_and_text(turn) for turn in prompt if turn["role"] not in _SYSTEMS]
    shared_questions = [_role_and_text(turn) for turn in begins if turn["role"] not in _SYSTEMS]
    if not any(
        shared_questions[n : n + len(questions)] == questions
        for n in range(len(shared_questions) - len(questions) + 1)
    ):
        raise RowError("other_prompt", "the answers begin with a question that is not the prompt")
    return [turn for turn in prompt if turn["role"] in _SYSTEMS and turn not in begins] + begins


def after_prompt(
    prompt: list[Message], answers: list[list[Message]]
) -> tuple[list[Message], list[list[Message]]]:
    """Return prompt and answers; the answers may be conversations that repeat the prompt.

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
            systems = [turn for turn in prompt if turn["role"] in _SYSTEMS and turn not in begins[0]]
            return systems + begins[0], [turns[length:] for turns in answers]
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
    turns = _prompt_turns(row[columns[name]], columns[name])
    more = row.get(columns["input"]) if "input" in columns else None
    if more and turns:
        text = as_text(more, columns["input"])
        turns[-1] = {**turns[-1], "content": "\n".join(t for t in (turns[-1]["content"], text) if t.strip())}
    return turns


def _prompt_turns(value: Cell, name: str) -> list[Message]:
    """Return the turns of a prompt, also of a text that is a transcript up to the answer's mark."""
    spoken = turns_in(value) if isinstance(value, str) else []
    return spoken if is_open(spoken) else turns_or_text(value, name, "user")


def _shared(first: list[Message], second: list[Message]) -> int:
    """Return the number of leading turns that both conversations share; at least a turn of each remains."""
    pairs = enumerate(zip(first[:-1], second[:-1], strict=False))
    return next((n for n, (a, b) in pairs if a != b), max(0, min(len(first), len(second)) - 1))


def check_answer(turns: Sequence[Message], detail: str) -> None:
    """Raise RowError unless the turns have an answer, and no answer is empty."""
    answers = [has_meaning(turn) for turn in turns if turn["role"] == "assistant"]
    if not answers or not all(answers):
        raise RowError("no_answer", detail)


def check_question(prompt: Sequence[Message]) -> None:
    """Raise RowError unless the prompt has a non-empty user turn."""
    if not any(turn["content"].strip() for turn in prompt if turn["role"] == "user"):
        raise RowError("empty", "the prompt is empty")


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
        self,
        rows: Sequence[Row],
        *,
        where: str,
        requested: str = "auto",
        mapping: Mapping[str, str] | None = None,
    ) -> Shape:
        names = set(column_names(rows))
        mapping = dict(mapping or {})
        rejected = next((name for name in _REJECTED if name in names), None)
        if rejected and not mapping and "messages" in names and not names & set(ANSWERS):
            mapping = {"chosen": "messages", "rejected": rejected}
        wrong = codes.DATA_FORMAT_PAIRS(where)
        if ranked := sorted(name for name in names if any(is_list_of_texts(row.get(name)) for row in rows)):
            wrong = replace(wrong, hint=f"'{ranked[0]}' holds several texts; {ROW_FOR_EACH}")
        return detect_answers(
            rows,
            ANSWERS,
            ("input", "system", "margin"),
            wrong,
            requested=requested,
            mapping=mapping,
            alone="the prompt is the common beginning of both answers",
        )

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        """Return (chosen, rejected): conversations with the same prompt and loss on the turns after it.

        Raises RowError.
        """
        columns = shape.columns
        if shape.format == PAIR_TEXT:
            return self._of_texts(row, columns)
        prompt, answers = _split(row, columns)
        prompt = system_of(row, columns) + prompt
        # Both answers must have text, differ, and follow a prompt.
        for name, turns in zip(ANSWERS, answers, strict=True):
            check_answer(turns, f"'{columns[name]}' is empty")
        check_question(prompt)
        margin = _margin(row, columns)
        return tuple(
            Example(messages=(*prompt, *turns), learn_from=len(prompt), values=margin) for turns in answers
        )

    def _of_texts(self, row: Row, columns: Mapping[str, str]) -> tuple[Example, ...]:
        texts = [as_text(row.get(columns[name]), columns[name]) for name in ANSWERS]
        for name, text in zip(ANSWERS, texts, strict=True):
            check_answer([{"role": "assistant", "content": text}], f"'{columns[name]}' is empty")
        begin, margin = _common_characters(*texts), _margin(row, columns)
        for name, text in zip(ANSWERS, texts, strict=True):
            answer: Message = {"role": "assistant", "content": text[begin:]}
            check_answer([answer], f"'{columns[name]}' is the beginning of both alone")
        check_question([{"role": "user", "content": texts[0][:begin]}])
        return tuple(Example(text=text, begin=begin, values=margin) for text in texts)

    def trained_tokens(self, train_on: str) -> str:
        return "assistant"

    def same(self, documents: Sequence[Iterable[int]]) -> bool:
        chosen, rejected = documents
        return list(chosen) == list(rejected)


PAIRS = Pairs()
