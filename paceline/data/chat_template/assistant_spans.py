"""Find the spans of a rendered conversation that carry loss.

A turn's characters are the text that the template's loop wrote for it (``render``). Their opening belongs to
the prompt at generation (``add_generation_prompt``), so it has no loss. The special token that ends the turn
has loss. If the loop cannot be followed, prefixes of the conversation are rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from paceline.core.json_types import Json, JsonObject
from paceline.data.chat_template.render import ChatTemplate, Rendered, Span, TemplateInput
from paceline.data.rows.formats import Example
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
        self._openings: dict[str, tuple[str, ...]] = {}

    def spans(self, chat: TemplateInput, rendered: Rendered, trained: Sequence[int]) -> list[Span]:
        """Return the spans of the turns ``trained``. Raises RowError."""
        labelled: list[Span] = []
        text = rendered.text
        for turn in trained:
            regions = self._own_spans(chat, rendered, turn)
            marked = self._marked(rendered, regions, turn, chat)
            if marked is None:
                spans = (
                    self._own(text, regions, chat, turn) if regions else [self._by_prefixes(text, chat, turn)]
                )
                labelled += [self._closed(text, span) for span in spans]
                continue
            labelled += marked[:-1]  # a block within the turn ends where its author says
            for span in marked[-1:]:  # the last one reaches to the token that ends the turn
                closed = max(span, self._closed(text, span), key=lambda pair: pair[1])
                labelled.append(span if self._opens_next(chat, rendered, turn, closed[1]) else closed)
        return labelled

    def _opens_next(self, chat: TemplateInput, rendered: Rendered, turn: int, end: int) -> bool:
        """Return whether the turn after ``turn`` wrote the character before ``end``."""
        if rendered.turns and any(rendered.turns):
            later = rendered.turns[turn + 1 :]
            return any(a < end <= b for regions in later for a, b in regions)
        if turn + 1 == len(chat.messages):
            return False
        try:
            upto = self._template.render(_first(chat, turn + 1))
        except RowError:  # a template that refuses a part of the conversation: its marks are closed as ever
            return False
        return end > _common(rendered.text, upto)

    def _own_spans(self, chat: TemplateInput, rendered: Rendered, turn: int) -> list[Span]:
        """Return the text that the loop wrote for a turn, without tool results inside it."""
        if rendered.turns is None:
            return []
        regions = rendered.turns[turn]
        others = [
            number
            for number, content in enumerate([_plain(message["content"]) for message in chat.messages])
            if number > turn and content and not rendered.turns[number]
            if any(content in rendered.text[a:b] for a, b in regions)
        ]
        if not others:
            return regions
        begin, end = self._written_for(chat, rendered.text, regions, turn, others)
        pieces = [(a, min(b, begin)) for a, b in regions] + [(max(a, end), b) for a, b in regions]
        return sorted({(a, b) for a, b in pieces if a < b})

    def _written_for(
        self, chat: TemplateInput, text: str, regions: Sequence[Span], turn: int, others: Sequence[int]
    ) -> Span:
        """Return the parts of ``regions``, the spans of ``turn``, that belong to the turns ``others``.

        These are the parts that change without them, at least from their first content to their last.
        """
        contents = [_plain(chat.messages[number]["content"]) for number in others]
        first = min(text.index(c, a, b) for c in contents for a, b in regions if c in text[a:b])
        last = max(text.rindex(c, a, b) + len(c) for c in contents for a, b in regions if c in text[a:b])
        try:
            fewer = [message for number, message in enumerate(chat.messages) if number not in others]
            other = self._template.render(chat._replace(messages=fewer))
        except RowError:
            return first, last
        start = _common(other, text)
        # The common suffix, as a common prefix of the reversed texts.
        end = len(text) - _common(other[start:][::-1], text[start:][::-1])
        content = _plain(chat.messages[turn]["content"])
        after = text.find(content, last, end) if content else -1
        end = after if after >= 0 else end  # what the turn itself says has loss, wherever it stands
        return (start, end) if start <= first and last <= end else (first, last)

    def _marked(
        self, rendered: Rendered, regions: Sequence[Span], turn: int, chat: TemplateInput
    ) -> list[Span] | None:
        """Return the turn's ``{% generation %}`` blocks; None if the template has none."""
        if not self._template.has_blocks or chat.messages[turn]["role"] != "assistant":
            return None
        if regions:
            return [m for m in rendered.marks if any(a <= m[0] and m[1] <= b for a, b in regions)]
        # The loop cannot be followed: the k-th block is taken for the k-th answer.
        answers = [n for n, message in enumerate(chat.messages) if message["role"] == "assistant"]
        if len(answers) != len(rendered.marks):
            raise RowError(
                "template_not_incremental", f"{len(rendered.marks)} marks of {len(answers)} answers"
            )
        return [rendered.marks[answers.index(turn)]]

    def _own(self, text: str, regions: Sequence[Span], chat: TemplateInput, turn: int) -> list[Span]:
        """Return a turn's text without the opening that belongs to the prompt."""
        (start, end), *rest = regions
        wrote = text[start:end]
        if chat.messages[turn]["role"] == "assistant":
            # Where no opening is there, another turn opened it
            openings = (opening for opening in self._opening(chat) if wrote.startswith(opening))
            start += len(next(openings, ""))
        else:  # no prompt opens such a turn: its content has loss, and what ends it
            start += max(wrote.find(_plain(chat.messages[turn]["content"])), 0)
        return [(start, end), *rest]

    def _opening(self, chat: TemplateInput) -> tuple[str, ...]:
        """Return the possible openings of a turn, which have no loss, longest first.

        These are the generation prompt and the prefix that every answer shares. If the turn has other
        reasoning, also the generation prompt without the reasoning block that it opens.
        """
        parts = isinstance(chat.messages[0]["content"], list)
        key = json.dumps([parts, chat.options], sort_keys=True)
        if key not in self._openings:
            prompt, header = self._find_opening(parts, chat.options)
            thought = _THOUGHT.search(prompt)
            # A template that opens a thought in the prompt may write none, or another, in the whole text.
            unthought = prompt[: thought.start()] if thought else prompt
            self._openings[key] = prompt, unthought, header[: len(unthought)]
        return self._openings[key]

    def _find_opening(self, parts: bool, options: Mapping[str, Json]) -> tuple[str, str]:
        def turn(role: str, text: str) -> JsonObject:
            return {"role": role, "content": [{"type": "text", "text": text}] if parts else text}

        question = [turn("user", "a")]
        answered = [*question, turn("assistant", _ANSWER), turn("user", "a"), turn("assistant", "b")]
        try:
            before = self._template.render(TemplateInput(question, options=options))
            opened = self._template.render(TemplateInput(question, options=options), prompt=True)
            text, turns, _ = self._template.render_whole(TemplateInput(answered, options=options))
        except RowError:
            return "", ""
        if not turns or not turns[1]:
            prompt = opened[_common(before, opened) :]
            return prompt, prompt
        start, end = turns[1][0]
        # Where the answer begins in the whole, the prompt begins in the opened one.
        prompt = opened[start if opened[:start] == text[:start] else _common(before, opened) :]
        return prompt, prompt[: _common(prompt, text[start : max(text.find(_ANSWER, start, end), start)])]

    def _by_prefixes(self, text: str, chat: TemplateInput, turn: int) -> Span:
        """Return a turn's span from renderings of the turns before it and up to it. Raises RowError."""
        before = self._template.render(_first(chat, turn)) if turn else ""
        opened = self._template.render(_first(chat, turn), prompt=True) if turn else ""
        start = len(opened) if text.startswith(opened) else _common(opened, text)
        content = _plain(chat.messages[turn]["content"])
        # The turns before this one differ once it follows: no prefix shows where it begins.
        if start < len(before):
            raise RowError(
                "template_not_incremental",
                f"turn {turn + 1}: an earlier part is rendered differently once the answer follows",
            )
        upto = text if (turn == len(chat.messages) - 1) else self._template.render(_first(chat, turn + 1))
        if text.startswith(upto) and len(upto) > start:
            return start, len(upto)
        begin = text.find(content, start)
        if begin < 0:
            raise RowError(
                "template_not_incremental", f"turn {turn + 1}: {content[:40]!r} is not in the rendered text"
            )
        return start, begin + len(content)

    def _closed(self, text: str, span: Span) -> Span:
        """Extend the span to the special token that ends the turn, without trailing white space."""
        start, end = span
        end = start + len(text[start:end].rstrip())
        if any(match.end() == end for match in self._specials.finditer(text, max(start, end - 64), end)):
            return start, end
        match = self._specials.match(text, len(text) - len(text[end:].lstrip()))
        return (start, match.end()) if match and match.group() != self._bos else span


def _plain(content: Json) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict)).strip()


def _first(chat: TemplateInput, count: int) -> TemplateInput:
    return chat._replace(messages=chat.messages[:count])


def _common(a: str, b: str) -> int:
    """Return the length of the longest common prefix."""
    # By halves: texts are long, and startswith compares them at once
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(b[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def trained_turns(example: Example, train_on: str) -> list[int] | None:
    """Return the turns with loss; None if no turn sets it, so that ``train_on`` decides."""
    if not any("trained" in message for message in example.messages):
        return None
    return [
        number
        for number, message in enumerate(example.messages)
        if number >= example.learn_from
        and message.get("trained", train_on == "all" or message["role"] == "assistant")
    ]


def idle_weights(example: Example, train_on: str) -> tuple[str, ...]:
    """Return the name under which redundant turn weights are counted."""
    for number, message in enumerate(example.messages):
        has_loss = number >= example.learn_from
        usual = has_loss and (train_on == "all" or message["role"] == "assistant")
        if "trained" in message and (not has_loss or message["trained"] == usual):
            return ("messages[].weight (or loss, train: of turns where it changes nothing)",)
    return ()


def all_but(rendered: Rendered, trained: Sequence[int]) -> list[Span]:
    """Return all characters but those of turns without loss. Raises RowError."""
    if rendered.turns is None:
        raise RowError("template_not_incremental", "which turn wrote which characters cannot be told")
    spans: list[Span] = []
    before = 0
    for start, end in sorted(
        span for number, regions in enumerate(rendered.turns) if number not in trained for span in regions
    ):
        spans.append((before, start))
        before = end
    return [(a, b) for a, b in [*spans, (before, len(rendered.text))] if b > a]
