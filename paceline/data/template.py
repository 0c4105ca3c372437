"""Tokenize conversations with the chat template (in Transformers' sandbox), and label the answers.

The full conversation is rendered once and tokenized once; answers are character spans, from the template's
own ``{% generation %}`` marks, or else from rendering prefixes of the conversation. A token has loss if it
overlaps a span.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.core import bounded
from paceline.data.formats import Example, Message, RowError

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerBase

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")

MAX_CHARACTERS = 1 << 26  # maximum of one rendered conversation

Span = tuple[int, int]
T = TypeVar("T")


class Encoded(NamedTuple):
    """``input_ids`` int32 [n]; ``labelled`` bool [n], True where the token has loss."""

    input_ids: NDArray[np.int32]
    labelled: NDArray[np.bool_]


class CostlyTemplateError(RowError):
    """The template takes too much time or memory, so preparation stops; ``number``: the example's index."""

    def __init__(self, detail: str, number: int = 0) -> None:
        super().__init__("template_costly", detail)
        self.number = number


class Encoder:
    """Convert examples to tokens. ``train_on`` is ``assistant`` or ``all``."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, train_on: str) -> None:
        self.tokenizer = tokenizer
        self.train_on = train_on
        self.template: str = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        self.marked = bool(_MARKS.search(self.template))
        added = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        specials = added | dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        self._special = re.compile(
            "|".join(re.escape(t) for t in sorted(specials.values(), key=len, reverse=True) if t) or r"(?!)"
        )
        self._special_ids = frozenset(specials)
        self._eos = tokenizer.eos_token_id

    def encode(self, examples: Sequence[Example]) -> list[Encoded | RowError]:
        """Return one result per example, in order; a row that cannot be encoded gives its RowError.

        Raises CostlyTemplateError.
        """
        results: list[Encoded | RowError | None] = [None] * len(examples)
        rendered: list[tuple[int, str, list[Span] | None]] = []
        # Render conversations one by one (a template may refuse), then tokenize all texts in one call.
        turns = ((n, e) for n, e in enumerate(examples) if e.messages)
        for number, found in self._each(turns, lambda e: self._render(list(e.messages), e.learn_from)):
            if isinstance(found, RowError):
                results[number] = found
            else:
                rendered.append((number, *found))
        plain = [(n, e.text) for n, e in enumerate(examples) if not e.messages]
        for (number, _, spans), (ids, encoding) in zip(
            rendered, self._tokens([text for _, text, _ in rendered], chat=True), strict=True
        ):
            results[number] = self._conversation(ids, encoding, spans)
        for (number, _), (ids, _) in zip(
            plain, self._tokens([text for _, text in plain], chat=False), strict=True
        ):
            results[number] = self._plain(ids)
        return [r if r is not None else RowError("empty") for r in results]

    def encode_prompts(self, examples: Sequence[Example]) -> list[Encoded | RowError]:
        """Return the conversations with the opening of the assistant's turn, without labels."""
        results: list[Encoded | RowError] = []
        for _, found in self._each(enumerate(examples), lambda e: self._text(list(e.messages), prompt=True)):
            if isinstance(found, RowError):
                results.append(found)
                continue
            ids = self._tokens([found], chat=True)[0][0]
            results.append(Encoded(ids, np.zeros(len(ids), np.bool_)) if len(ids) else RowError("empty"))
        return results

    def encode_whole(self, examples: Sequence[Example]) -> list[Encoded | RowError]:
        """Return texts and conversations as they are: without labels, no end of text appended."""
        results: list[Encoded | RowError] = []
        for example, (_, found) in zip(
            examples,
            self._each(enumerate(examples), lambda e: self._text(list(e.messages)) if e.messages else e.text),
            strict=True,
        ):
            if isinstance(found, RowError):
                results.append(found)
                continue
            ids = self._tokens([found], chat=bool(example.messages))[0][0]
            results.append(Encoded(ids, np.zeros(len(ids), np.bool_)) if len(ids) else RowError("empty"))
        return results

    def _each(
        self, examples: Iterable[tuple[int, Example]], render: Callable[[Example], T]
    ) -> list[tuple[int, T | RowError]]:
        """Render each example within bounds of memory and time (templates are untrusted).

        Return (number, text or error).
        """
        done: list[tuple[int, T | RowError]] = []
        number = 0
        try:
            with bounded.bounded_memory(), bounded.bounded_time() as start_clock:
                for number, example in examples:  # noqa: B007
                    start_clock()
                    try:
                        done.append((number, render(example)))
                    except RowError as error:
                        done.append((number, error))
        except bounded.SpentError:
            raise CostlyTemplateError(f"did not finish within {bounded.CPU_SECONDS:g} s", number) from None
        except MemoryError:
            raise CostlyTemplateError(f"more than {bounded.MEMORY_BYTES >> 20} MiB", number) from None
        return done

    def stop_token_ids(self) -> tuple[int, ...]:
        """Return the tokens that end an answer: end of text, and the template's end of turn."""
        stops = {} if self._eos is None else {int(self._eos): None}
        if self.template:
            turns = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
            encoded = self.encode([Example(messages=turns)])[0]
            trained = [] if isinstance(encoded, RowError) else encoded.input_ids[encoded.labelled].tolist()
            stops |= {i: None for i in trained[-2:] if i in self._special_ids}
        return tuple(stops)

    def _tokens(self, texts: list[str], *, chat: bool) -> list[tuple[NDArray[np.int32], Encoding | None]]:
        """Return (ids int32 [n], the tokenizer's ``Encoding`` or None) of each text.

        Templates write their special tokens themselves.
        """
        if not texts:
            return []
        coded = self.tokenizer(texts, add_special_tokens=not chat, return_attention_mask=False, verbose=False)
        encodings = coded.encodings or [None] * len(texts)
        return [
            (np.array(ids, np.int32), encoding)
            for ids, encoding in zip(coded["input_ids"], encodings, strict=True)
        ]

    def _plain(self, ids: NDArray[np.int32]) -> Encoded:
        if self._eos is not None and (len(ids) == 0 or ids[-1] != self._eos):
            ids = np.append(ids, np.int32(self._eos))
        return Encoded(ids, np.ones(len(ids), np.bool_))

    def _conversation(
        self, ids: NDArray[np.int32], encoding: Encoding | None, spans: list[Span] | None
    ) -> Encoded:
        """Label the spans (None: all tokens).

        End the last answer with a special token, so that the model learns to stop.
        """
        if spans is None:
            labelled = np.ones(len(ids), np.bool_)
        else:
            labelled = np.zeros(len(ids), np.bool_)
            assert encoding is not None  # spans are of characters, which only it maps to tokens
            for start, end in spans:
                first, last = _token_range(encoding, start, end)
                labelled[first : last + 1] = True
        trained = np.flatnonzero(labelled)
        ended = any(int(i) in self._special_ids for i in ids[trained[-2:]])
        if self._eos is not None and len(trained) and not ended:
            ids, labelled = ids[: trained[-1] + 1], labelled[: trained[-1] + 1]
            ids, labelled = np.append(ids, np.int32(self._eos)), np.append(labelled, True)
        return Encoded(ids, labelled)

    def _render(self, messages: list[Message], learn_from: int = 0) -> tuple[str, list[Span] | None]:
        """Return the conversation's text, and its answers' spans from turn ``learn_from`` (None: all)."""
        if self.train_on == "all":
            return self._text(messages), None
        if self.marked:
            text, marks = self._jinja(messages, mask=True)
            trained = sum(m["role"] == "assistant" for m in messages[learn_from:])
            marks = marks[len(marks) - trained :] if learn_from else marks
            return text, [self._closed(text, (int(a), int(b))) for a, b in marks]
        text = self._text(messages)
        turns = [n for n, m in enumerate(messages) if m["role"] == "assistant" and n >= learn_from]
        return text, [self._closed(text, self._answer(text, messages, turn)) for turn in turns]

    def _answer(self, text: str, messages: list[Message], turn: int) -> Span:
        """Return the span of one turn's answer: from the end of the generation prompt to the end of the turn.

        Templates that render earlier answers differently (they drop reasoning) are not incremental: then
        search for the answer's own text.
        """
        before = self._text(messages[:turn]) if turn else ""
        opened = self._text(messages[:turn], prompt=True) if turn else ""
        start = len(opened) if text.startswith(opened) else _common(opened, text)
        content = messages[turn]["content"].strip()
        if start < len(before):
            raise RowError(
                "template_not_incremental",
                f"turn {turn + 1}: an earlier part is rendered differently once the answer follows",
            )
        upto = text if turn == len(messages) - 1 else self._text(messages[: turn + 1])
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
        if any(match.end() == end for match in self._special.finditer(text, max(start, end - 64), end)):
            return start, end
        gap = len(text) - len(text[end:].lstrip())
        match = self._special.match(text, gap)
        return (start, match.end()) if match and match.group() != self.tokenizer.bos_token else span

    def _text(self, messages: list[Message], *, prompt: bool = False) -> str:
        return self._jinja(messages, prompt=prompt)[0]

    def _jinja(
        self, messages: list[Message], *, prompt: bool = False, mask: bool = False
    ) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        render: Any = render_jinja_template  # annotated as str, but returns texts and marks

        tokens: dict[str, Any] = dict(self.tokenizer.special_tokens_map)
        try:
            rendered, marks = render(
                [messages],
                chat_template=self.template,
                return_assistant_tokens_mask=mask,
                add_generation_prompt=prompt,
                **tokens,
            )
        except (bounded.SpentError, MemoryError):
            raise
        except Exception as exc:  # noqa: BLE001  (a template may raise anything)
            raise RowError("template_refused", f"{type(exc).__name__}: {exc}"[:200]) from exc
        if len(rendered[0]) > MAX_CHARACTERS:
            raise MemoryError
        return rendered[0], list(marks[0]) if mask else []


def _token_range(encoding: Encoding, start: int, end: int) -> tuple[int, int]:
    """Return the first and last token that overlap the characters [start, end).

    Characters without a token (dropped white space) are skipped.
    """
    first, last = None, None
    while start < end and (first := encoding.char_to_token(start)) is None:
        start += 1
    while end > start and (last := encoding.char_to_token(end - 1)) is None:
        end -= 1
    return (first, last) if first is not None and last is not None else (0, -1)


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
