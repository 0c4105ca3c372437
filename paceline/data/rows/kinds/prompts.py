"""Prompts that the model answers itself, with the data that a reward needs.

The prompt is ``prompt``, ``question``, ``query``, ``problem`` or ``instruction`` (a text, ``input`` is
appended to an instruction), or turns under any of these, ``messages`` or ``conversations``. A last assistant
turn is the expected answer. Otherwise it is ``answer``, ``completion``, ``response``, ``output``,
``solution`` or ``ground_truth``, if present.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.formats import Example, Shape, check_mapping, column_names, listed, system_of
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.kinds.preference_pairs import check_question
from paceline.data.rows.messages import Message, turns_of_any
from paceline.data.rows.values import Cell, Row, RowError, as_text

PROMPT, CONVERSATION = "prompt", "prompt_conversation"
_PROMPT_NAMES = ("prompt", "question", "query", "problem", "instruction", "messages", "conversations")
_EXPECTED = ("answer", "completion", "response", "output", "solution", "ground_truth")
_SAME = dict.fromkeys(_PROMPT_NAMES, "prompt") | dict.fromkeys(_EXPECTED, "answer")
_BESIDE = ("input", "system")  # in this order: only an instruction has an input


class Prompts(RowKind):
    """One prompt per row, with the data that a reward needs."""

    stored_name = "prompts"
    words = "prompts"
    answered = True
    keeps_rows = True
    conversations = frozenset({CONVERSATION})

    def detect(
        self,
        rows: Sequence[Row],
        *,
        where: str,
        requested: str = "auto",
        mapping: Mapping[str, str] | None = None,
    ) -> Shape:
        """Detect the shape of prompts from the first rows.

        ``columns`` maps ``prompt``, ``answer`` (or their other names), ``input`` and ``system``. Raises
        DataError without a prompt, with several, or if a mapped column is missing.
        """
        names, given = column_names(rows), dict(mapping or {})
        remedy = "columns: {prompt: X, answer: Y} (next to path:), where X and Y are names in the file"
        wrong = codes.DATA_FORMAT_PROMPTS("the rows have no prompt", where, listed(names), remedy)
        check_mapping(given, (*_PROMPT_NAMES, *_EXPECTED, *_BESIDE), names, wrong)
        # Training's names (instruction, messages, completion, output, ...) mean the same columns here.
        mapping = {_SAME.get(name, name): column for name, column in given.items()}
        if len(mapping) < len(given):
            raise DataError(replace(wrong, what=f"columns: two names of one column in {', '.join(given)}"))
        # Exactly one prompt column; "prompt" wins over the others.
        prompts = (
            [mapping["prompt"]] if "prompt" in mapping else [name for name in _PROMPT_NAMES if name in names]
        )
        if "prompt" in prompts:
            prompts = ["prompt"]
        if len(prompts) > 1:
            wrong = replace(wrong, what=f"the prompt could be any of {', '.join(prompts)}")
        if len(prompts) != 1:
            raise DataError(wrong)
        # Optional columns: the expected answer, input and system.
        columns = {"prompt": prompts[0]}
        answers = [name for name in _EXPECTED if name in names]
        if answer := mapping.get("answer") or next(iter(answers), None):
            columns["answer"] = answer
        # Only an instruction has an input, under whatever names the file has for both.
        instructed = prompts == ["instruction"] or "instruction" in given and "input" not in given.values()
        has_input = "input" in mapping or instructed
        for name in _BESIDE if has_input else _BESIDE[1:]:
            if mapping.get(name, name) in names:
                columns[name] = mapping.get(name, name)
        turns = any(isinstance(row.get(prompts[0]), list) for row in rows)
        expected = f"the expected answer '{answer}'" if answer else "no expected answer except in the turns"
        return Shape(CONVERSATION if turns else PROMPT, columns, f"the prompt is '{prompts[0]}', {expected}")

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        """Return the conversation up to the model's answer.

        ``facts`` is the row as JSON, with three additions. ``answer`` is the expected answer. ``prompt`` is
        the last question, in place of a column of that name. ``expected_turn`` is a last assistant turn, if
        it is more than the answer. Raises RowError.
        """
        columns = shape.columns
        value, name = row.get(columns["prompt"]), columns["prompt"]
        if value is None:
            raise RowError("missing_column", f"no '{name}'")
        # A last assistant turn is the expected answer, unless a column holds it.
        messages: list[Message] = [{"role": "user", "content": ""}]
        if isinstance(value, list):
            messages = turns_of_any(value)
        else:
            messages[0]["content"] = as_text(value, name)
        answer: Cell = row.get(columns["answer"]) if "answer" in columns else None
        facts: dict[str, object] = dict(row)  # for the reward function
        if messages and messages[-1]["role"] == "assistant":
            expected = messages.pop()
            if answer is not None or len(expected) > len(("role", "content")):
                facts["expected_turn"] = expected
            answer = expected["content"] if answer is None else answer
        if "input" in columns and messages:
            text = as_text(row.get(columns["input"]), columns["input"])
            if text.strip():
                messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n{text}"}
        messages = system_of(row, columns) + messages
        check_question(messages)
        facts |= {"prompt": messages[-1]["content"]} | ({} if answer is None else {"answer": answer})
        try:  # other types become their text
            text = json.dumps(facts, ensure_ascii=False, default=str)
            text.encode()
        except UnicodeEncodeError as error:
            raise RowError("not_text", "a field contains half of a surrogate pair") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise RowError("not_text", str(error)[:100]) from error
        return (Example(messages=tuple(messages), learn_from=len(messages), facts=text),)


PROMPTS = Prompts()
