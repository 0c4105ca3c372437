"""Prompts that the model answers itself, with what a reward needs to judge the answer.

The prompt is ``prompt``, ``question``, ``query``, ``problem`` or ``instruction`` (a text, ``input`` is
appended to an instruction), or turns under any of these, ``messages`` or ``conversations``; a last assistant
turn is the expected answer. Otherwise it is ``answer``, ``completion``, ``response``, ``output``,
``solution`` or ``ground_truth``, if present.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.formats import Example, Shape, corrected
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.messages import Message, turns_of_any
from paceline.data.rows.values import Cell, Row, RowError, as_text

PROMPT, CONVERSATION = "prompt", "prompt_conversation"
_ASKED = ("prompt", "question", "query", "problem", "instruction", "messages", "conversations")
_EXPECTED = ("answer", "completion", "response", "output", "solution", "ground_truth")
_BESIDE = ("input", "system")


def detect_prompts(
    rows: Sequence[Row], *, where: str, requested: str = "auto", mapping: Mapping[str, str] | None = None
) -> Shape:
    """Detect the shape of prompts from the first rows.

    ``columns`` maps ``prompt``, ``answer``, ``input`` and ``system`` to names in the file. Raises DataError
    without a prompt, with several, or if a mapped column is missing.
    """
    found = list(dict.fromkeys(name for row in rows for name in row))
    mapping = dict(mapping or {})
    seen = f"columns {', '.join(found) or 'none'}"
    hint = "columns: {prompt: X, answer: Y} (next to path:), where X and Y are names in the file"
    # The user's mapping must name known columns that exist.
    wrong = [k for k in mapping if k not in ("prompt", "answer", *_BESIDE)] + [
        v for v in mapping.values() if v not in found
    ]
    if wrong:
        what = f"columns: no such column ({', '.join(wrong)})"
        line = corrected(mapping, ("prompt", "answer", *_BESIDE), found)
        raise DataError(codes.DATA_FORMAT_PROMPTS(what, where, seen, line or hint))
    # Exactly one prompt column; "prompt" wins over the others.
    prompts = [mapping["prompt"]] if "prompt" in mapping else [name for name in _ASKED if name in found]
    if len(prompts) > 1 and "prompt" in prompts:
        prompts = ["prompt"]
    if len(prompts) != 1:
        what = (
            "the rows have no prompt" if not prompts else f"the prompt could be any of {', '.join(prompts)}"
        )
        raise DataError(codes.DATA_FORMAT_PROMPTS(what, where, seen, hint))
    # Optional columns: the expected answer, input and system.
    columns = {"prompt": prompts[0]}
    answers = [mapping["answer"]] if "answer" in mapping else [name for name in _EXPECTED if name in found]
    columns |= {"answer": answers[0]} if answers else {}
    columns |= {
        n: mapping.get(n, n)
        for n in _BESIDE
        if mapping.get(n, n) in found and (n != "input" or prompts[0] == "instruction" or n in mapping)
    }
    turns = any(isinstance(row.get(prompts[0]), list) for row in rows)
    expected = (
        f", the expected answer '{columns['answer']}'"
        if answers
        else ", no expected answer except in the turns"
    )
    return Shape(CONVERSATION if turns else PROMPT, columns, f"the prompt is '{prompts[0]}'{expected}")


def normalise_prompt(row: Row, shape: Shape) -> Example:
    """Return the conversation up to the model's answer.

    ``facts`` is the row as JSON, with ``answer``, ``prompt`` (the last question, whatever a column of that
    name has) and ``expected_turn`` (a last assistant turn, if it is more than the answer). Raises RowError.
    """
    columns = shape.columns
    value = row.get(columns["prompt"])
    if value is None:
        raise RowError("missing_column", f"no '{columns['prompt']}'")
    # A last assistant turn is the expected answer, unless a column holds it.
    messages = _turns(value, columns["prompt"])
    given = row.get(columns["answer"]) if "answer" in columns else None
    expected = messages.pop() if messages and messages[-1]["role"] == "assistant" else None
    answer = expected["content"] if given is None and expected is not None else given
    if (
        "input" in columns
        and messages
        and (more := as_text(row.get(columns["input"]), columns["input"])).strip()
    ):
        messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n{more}"}
    system = as_text(row.get(columns["system"]), columns["system"]) if "system" in columns else ""
    if system.strip():
        messages.insert(0, {"role": "system", "content": system})
    if not any(turn["content"].strip() for turn in messages if turn["role"] == "user"):
        raise RowError("empty", "the prompt is empty")
    # Keep the row for the reward function.
    facts: dict[str, object] = dict(row)
    if answer is not None:
        facts["answer"] = answer
    if expected is not None and (given is not None or len(expected) > len(("role", "content"))):
        facts["expected_turn"] = expected
    facts["prompt"] = messages[-1]["content"]
    return Example(messages=tuple(messages), learn_from=len(messages), facts=_json(facts))


def _turns(value: Cell, name: str) -> list[Message]:
    if not isinstance(value, list):
        return [{"role": "user", "content": as_text(value, name)}]
    return turns_of_any(value)


def _json(facts: Mapping[str, object]) -> str:
    """Return one line of JSON; other types become their text."""
    try:
        text = json.dumps(facts, ensure_ascii=False, default=str)
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError("not_text", "a field contains half of a surrogate pair") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise RowError("not_text", str(error)[:100]) from error
    return text


class Prompts(RowKind):
    """One prompt per row, with what a reward needs to judge its answers."""

    stored_name = "prompts"
    words = "prompts"
    answered = True
    keeps_rows = True
    conversations = frozenset({CONVERSATION})

    def detect(
        self, rows: Sequence[Row], *, where: str, requested: str, mapping: Mapping[str, str] | None
    ) -> Shape:
        return detect_prompts(rows, where=where, requested=requested, mapping=mapping)

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        return (normalise_prompt(row, shape),)


PROMPTS = Prompts()
