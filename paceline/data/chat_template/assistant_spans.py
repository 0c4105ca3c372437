"""Where in a rendered conversation the turns lie that carry loss.

A turn's own characters are what the template's loop wrote for it (``rendering``); of those, the opening that
stands in the prompt when the model answers (``add_generation_prompt``) has no loss, and the special token
that ends the turn has. Where the template cannot be followed so, prefixes of the conversation are rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from paceline.core.json_types import Json, JsonObject
from paceline.data.chat_template.render import Chat, ChatTemplate, Rendered, Span
from paceline.data.rows.values import RowError

_ANSWER = "answered by paceline"
_THOUGHT = re.compile(r"<[^<>]*think[^<>]*>|\[THINK\]")


class AnswerFinder:
    """Spans of turns with loss. ``specials`` matches special tokens; ``bos`` begins a text, and never ends a
    turn.
    """

    def __init__(self, template: ChatTemplate, specials: re.Pattern[str], bos: str | None) -> None:
        self._template = template
        self._specials = specials
        self._bos = bos
        self._openings: dict[str, tuple[str, str]] = {}

    def spans(self, chat: Chat, rendered: Rendered, trained: Sequence[int]) -> list[Span]:
        """Return the spans of the turns ``trained``. Raises RowError."""
        found: list[Span] = []
        for turn in trained:
            own = self._own_spans(chat, rendered, turn)
            marked = self._marked(rendered, own, turn, chat)
            if marked is not None:
                found += marked[:-1]  # a block within the turn ends where its author says
                found += [self._marked_to_the_end(rendered.text, span) for span in marked[-1:]]
                continue
            if own:
                spans = self._own(rendered.text, own, chat, turn)
            else:
                spans = [self._by_prefixes(rendered.text, chat, turn)]
            found += [self._closed(rendered.text, span) for span in spans]
        return found

    def _marked_to_the_end(self, text: str, span: Span) -> Span:
        """Return a block as its author wrote it; one without the token that ends the turn reaches to it."""
        closed = self._closed(text, span)
        return span if closed[1] <= span[1] else closed

    def _own_spans(self, chat: Chat, rendered: Rendered, turn: int) -> list[Span]:
        """Return what the loop wrote for a turn, without results of tools that it wrote there, too."""
        if rendered.turns is None:
            return []
        own = rendered.turns[turn]
        contents = [_plain(message["content"]) for message in chat.messages]
        others = [
            number
            for number, content in enumerate(contents)
            if number > turn and content and not rendered.turns[number]
            if any(content in rendered.text[a:b] for a, b in own)
        ]
        if not others:
            return own
        return _minus(own, self._written_for(chat, rendered.text, own, turn, others))

    def _written_for(
        self, chat: Chat, text: str, own: Sequence[Span], turn: int, others: Sequence[int]
    ) -> Span:
        """Return what stands within ``own``, the spans of ``turn``, for the turns ``others``: what differs
        without them, at least from their first content to their last.
        """
        contents = [_plain(chat.messages[number]["content"]) for number in others]
        at = min(text.index(c, a, b) for c in contents for a, b in own if c in text[a:b])
        last = max(text.rindex(c, a, b) + len(c) for c in contents for a, b in own if c in text[a:b])
        try:
            fewer = [message for number, message in enumerate(chat.messages) if number not in others]
            other = self._template.render(chat._replace(messages=fewer))
        except RowError:
            return at, last
        start = _common(other, text)
        end = len(text) - _common(other[start:][::-1], text[start:][::-1])
        content = _plain(chat.messages[turn]["content"])
        after = text.find(content, last, end) if content else -1
        end = after if after >= 0 else end  # what the turn itself says has loss, wherever it stands
        return (start, end) if start <= at and last <= end else (at, last)

    def _marked(self, rendered: Rendered, own: Sequence[Span], turn: int, chat: Chat) -> list[Span] | None:
        """Return the turn's ``{% generation %}`` blocks; None if the template has none."""
        if not self._template.has_blocks or chat.messages[turn]["role"] != "assistant":
            return None
        if own:
            return [m for m in rendered.marks if any(a <= m[0] and m[1] <= b for a, b in own)]
        answers = [n for n, message in enumerate(chat.messages) if message["role"] == "assistant"]
        if len(answers) != len(rendered.marks):
            what = f"{len(rendered.marks)} marks of {len(answers)} answers"
            raise RowError("template_not_incremental", what)
        return [rendered.marks[answers.index(turn)]]

    def _own(self, text: str, own: Sequence[Span], chat: Chat, turn: int) -> list[Span]:
        """Return what a turn wrote, without the opening that the prompt gives."""
        (start, end), *rest = own
        wrote = text[start:end]
        if chat.messages[turn]["role"] == "assistant":
            opening, header = self._opening(chat)
            if wrote.startswith(opening):
                start += len(opening)
            elif wrote.startswith(header):  # otherwise another turn opened it
                start += len(header)
        else:  # no prompt opens such a turn: its content has loss, and what ends it
            content = _plain(chat.messages[turn]["content"])
            start += max(wrote.find(content), 0)
        return [(start, end), *rest]

    def _opening(self, chat: Chat) -> tuple[str, str]:
        """Return the generation prompt without the reasoning that it may begin (that is the answer's), and
        the part of it that every answer begins with.
        """
        parts = isinstance(chat.messages[0]["content"], list)
        key = json.dumps([parts, chat.options], sort_keys=True)
        if key not in self._openings:
            prompt, header = self._find_opening(parts, chat.options)
            thought = _THOUGHT.search(prompt)
            prompt = prompt[: thought.start()] if thought else prompt
            self._openings[key] = prompt, header[: len(prompt)]
        return self._openings[key]

    def _find_opening(self, parts: bool, options: Mapping[str, Json]) -> tuple[str, str]:
        def turn(role: str, text: str) -> JsonObject:
            return {"role": role, "content": [{"type": "text", "text": text}] if parts else text}

        question = [turn("user", "a")]
        answered = [*question, turn("assistant", _ANSWER), turn("user", "a"), turn("assistant", "b")]
        try:
            before = self._template.render(Chat(question, options=options))
            opened = self._template.render(Chat(question, options=options), prompt=True)
            text, turns, _ = self._template.render_whole(Chat(answered, options=options))
        except RowError:
            return "", ""
        if not turns or not turns[1]:
            prompt = opened[_common(before, opened) :]
            return prompt, prompt
        start, end = turns[1][0]
        # Where the answer begins in the whole, the prompt begins in the opened one.
        prompt = opened[start if opened[:start] == text[:start] else _common(before, opened) :]
        header = text[start : max(text.find(_ANSWER, start, end), start)]
        return prompt, prompt[: _common(prompt, header)]

    def _by_prefixes(self, text: str, chat: Chat, turn: int) -> Span:
        """Return a turn's span from renderings of the turns before it and up to it. Raises RowError."""
        before = self._template.render(_first(chat, turn)) if turn else ""
        opened = self._template.render(_first(chat, turn), prompt=True) if turn else ""
        start = len(opened) if text.startswith(opened) else _common(opened, text)
        content = _plain(chat.messages[turn]["content"])
        if start < len(before):
            raise RowError(
                "template_not_incremental",
                f"turn {turn + 1}: an earlier part is rendered differently once the answer follows",
            )
        last = turn == len(chat.messages) - 1
        upto = text if last else self._template.render(_first(chat, turn + 1))
        if text.startswith(upto) and len(upto) > start:
            return start, len(upto)
        found = text.find(content, start)
        if found < 0:
            raise RowError(
                "template_not_incremental", f"turn {turn + 1}: {content[:40]!r} is not in the rendered text"
            )
        return start, found + len(content)

    def _closed(self, text: str, span: Span) -> Span:
        """Extend the span to the special token that ends the turn, without trailing white space."""
        start, end = span
        end = start + len(text[start:end].rstrip())
        if any(match.end() == end for match in self._specials.finditer(text, max(start, end - 64), end)):
            return start, end
        gap = len(text) - len(text[end:].lstrip())
        match = self._specials.match(text, gap)
        return (start, match.end()) if match and match.group() != self._bos else span


def _plain(content: Json) -> str:
    """Return the text of a message's content, also of parts."""
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict)).strip()


def _minus(spans: Sequence[Span], hole: Span) -> list[Span]:
    """Return the spans without a hole."""
    pieces = [(a, min(b, hole[0])) for a, b in spans] + [(max(a, hole[1]), b) for a, b in spans]
    return sorted({(a, b) for a, b in pieces if a < b})


def _first(chat: Chat, count: int) -> Chat:
    return chat._replace(messages=chat.messages[:count])


def _common(a: str, b: str) -> int:
    """Return the length of the longest common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(b[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
