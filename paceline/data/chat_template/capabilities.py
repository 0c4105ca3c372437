"""Test what a chat template does with each part of a conversation, by rendering short ones."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from paceline.core.json_types import JsonObject
from paceline.data.chat_template.conversation import Renderer
from paceline.data.chat_template.jinja_sandbox import DAY
from paceline.data.chat_template.options import options_read
from paceline.data.chat_template.render import GENERATION
from paceline.data.rows.formats import Example
from paceline.data.rows.messages import Message
from paceline.data.rows.values import RowError

_NOTES, _THOUGHT, _NAME, _VALUE = "paceline_answer", "paceline_reasoning", "paceline_tool", "paceline_value"
#: Where reasoning is written.
NOWHERE, LAST, EVERYWHERE = "no turn", "the answers after the last question", "every answer"


@dataclass(frozen=True)
class TemplateFacts:
    """``system``: it has system turns; ``developer``: it has this role (otherwise written as system);
    ``tools``, ``calls``, ``results``: it writes them; ``reasoning``: the answers whose reasoning it writes;
    ``rewrites``: earlier answers are written differently once others follow; ``marks``: it has ``{%
    generation %}`` blocks;
    ``dated``: it asks for today's date; ``options`` that it reads.
    """

    system: bool
    developer: bool
    tools: bool
    calls: bool
    results: bool
    reasoning: str
    rewrites: bool
    marks: bool
    dated: bool
    options: tuple[str, ...]

    def sentence(self) -> str:
        """Describe the template in one sentence."""
        parts = {
            "system turns": self.system,
            "tools": self.tools,
            "calls of tools": self.calls,
            "their results": self.results,
        }
        writes = [name for name, on in parts.items() if on]
        lacks = [name for name, on in parts.items() if not on]
        written = "not written" if self.reasoning == NOWHERE else f"written in {self.reasoning}"
        last = self.reasoning == LAST
        clauses = {
            f"it writes {_listed(writes)}": bool(writes),
            f"it has no {_listed(lacks, 'or')}": bool(lacks),
            f"reasoning is {written}": True,
            "the model does not see that of earlier turns": last,
            "earlier answers are written differently once others follow": self.rewrites and not last,
            f"today's date is {DAY:%Y-%m-%d} on every day, so that tokens stay the same": self.dated,
            f"options: {', '.join(self.options)}": bool(self.options),
        }
        return "; ".join(clause for clause, holds in clauses.items() if holds)


def facts_of(text: str, tokens: Mapping[str, str]) -> TemplateFacts:
    """Return the facts of a template. Raises RowError if it cannot be compiled."""
    template = Renderer(text, tokens)
    user: Message = {"role": "user", "content": "a"}
    answer: Message = {"role": "assistant", "content": "b"}
    thought: Message = {**answer, "reasoning_content": _THOUGHT}
    reasoning = NOWHERE
    if _THOUGHT in _text(template, user, thought):
        reasoning = EVERYWHERE if _THOUGHT in _text(template, user, thought, user, answer) else LAST
    call: JsonObject = {"name": _NAME, "arguments": {"x": _VALUE}}
    calling: Message = {
        "role": "assistant",
        "content": "",
        # Nine letters or digits, as Mistral's templates demand
        "tool_calls": [{"type": "function", "id": "a00000001", "function": call}],
    }
    result: Message = {"role": "tool", "content": _NOTES, "name": _NAME, "tool_call_id": "a00000001"}
    schema: JsonObject = {
        "name": _NAME,
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
    }
    tools: tuple[JsonObject, ...] = ({"type": "function", "function": schema},)
    called = _text(template, user, calling, result, answer)
    before, after = _text(template, user, answer), _text(template, user, answer, user, answer)
    return TemplateFacts(
        system=_NOTES in _text(template, {"role": "system", "content": _NOTES}, user, answer),
        developer=template.form.developer,
        tools=_NAME in _text(template, user, answer, tools=tools),
        calls=_VALUE in (called or _text(template, user, calling)),
        results=_NOTES in called,
        reasoning=reasoning,
        rewrites=bool(before) and not after.startswith(before.rstrip()),
        marks=bool(GENERATION.search(text)),
        dated="strftime_now" in text,
        options=tuple(sorted(options_read(text))),
    )


def unopened_header(template: Renderer) -> str:
    """Return the template's text before an answer if prompts lack it, as ``add_generation_prompt`` changes
    nothing. Empty otherwise, or if that text is blank.
    """
    question = Example(messages=({"role": "user", "content": "a"},))
    answered = Example(messages=(*question.messages, {"role": "assistant", "content": _NOTES}))
    try:
        prompt, opened = (
            template.render(question, partial(template.template.render, prompt=on))[1] for on in (False, True)
        )
        text, turns, _ = template.render(answered, template.template.render_whole)[1]
    except RowError:
        return ""
    start = turns[1][0][0] if turns and turns[1] else len(os.path.commonprefix([prompt, text]))
    header = text[start : max(text.find(_NOTES), start)]
    return header if prompt == opened and header.strip() else ""


def written_alike(first: Renderer, second: Renderer) -> bool:
    """Whether two templates render conversations equally, with and without a system turn that both
    support."""
    turns: tuple[Message, ...] = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    system: Message = {"role": "system", "content": _NOTES}
    texts = [(_text(first, *each), _text(second, *each)) for each in (turns, (system, *turns))]
    return all(mine == theirs or not (mine and theirs) for mine, theirs in texts)


def _text(template: Renderer, *turns: Message, tools: tuple[JsonObject, ...] = ()) -> str:
    """Return the text; empty if the template refuses the conversation."""
    try:
        return template.text(Example(messages=turns, tools=tools))
    except RowError:
        return ""


def _listed(names: Sequence[str], word: str = "and") -> str:
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
