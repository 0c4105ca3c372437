"""Tokenize conversations with the chat template (in Transformers' sandbox), and label the answers.

The full conversation is rendered once and tokenized once; a token has loss if it overlaps a span of a turn
that has loss (``answers``). An added token with ``lstrip`` or ``rstrip`` absorbs adjacent white space, which
may be an answer's. It has loss only if its own text is in the span.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.core.json_types import JsonObject
from paceline.core.security import resource_limits
from paceline.data.chat_template.assistant_spans import AnswerFinder, all_but, idle_weights, trained_turns
from paceline.data.chat_template.conversation import Renderer, Renderers
from paceline.data.chat_template.dropped_content import OPTION
from paceline.data.chat_template.jinja_sandbox import Span
from paceline.data.chat_template.options import options_read
from paceline.data.images.expand import ImageWriter
from paceline.data.images.slots import SLOT, has_slot
from paceline.data.rows.formats import Example
from paceline.data.rows.messages import Message
from paceline.data.rows.values import RowError

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
_TURNS: tuple[Message, ...] = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
_TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "a", "description": "b", "parameters": {"type": "object", "properties": {}}},
}


class Encoded(NamedTuple):
    """``input_ids`` int32 [n]; ``labelled`` bool [n], True where the token has loss. ``left_out``: parts of
    the row that the text lacks. ``end_added``: the last token is an end token that the template did not
    write. ``second``: the index of a second text's first token, if the tokenizer reports it (0: none).
    ``answers``: the tokens of each answer, if requested. ``images``: the features of each picture, which
    stand for as many tokens, without loss.
    """

    input_ids: NDArray[np.int32]
    labelled: NDArray[np.bool_]
    left_out: tuple[str, ...] = ()
    end_added: bool = False
    second: int = 0
    answers: tuple[tuple[int, int], ...] = ()
    images: tuple[int, ...] = ()


class RenderedText(NamedTuple):
    """A rendered conversation; ``spans`` have loss, None: all of it. ``answers``: the spans of all answers,
    if requested. ``images``: the features of each picture; ``runs``: how often their tokens are repeated.
    """

    text: str
    spans: list[Span] | None = None
    left_out: tuple[str, ...] = ()
    answers: tuple[Span, ...] = ()
    images: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()


class CostlyTemplateError(RowError):
    """The template takes too much time or memory, so preparation stops; ``number``: the example's index."""

    def __init__(self, detail: str, number: int = 0) -> None:
        super().__init__("template_costly", detail)
        self.number = number


class Encoder:
    """Convert examples to tokens. ``train_on`` is ``assistant`` or ``all``; ``find_answers``: also return
    where answers are. ``images``: how pictures are written; None: examples have none."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        train_on: str,
        *,
        find_answers: bool = False,
        images: ImageWriter | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.train_on = train_on
        self.find_answers = find_answers
        self.images = images
        marks = images.marks if images is not None else None
        self.renderers = Renderers(tokenizer.chat_template, dict(tokenizer.special_tokens_map), marks)
        added = tokenizer.added_tokens_decoder
        specials = {i: token.content for i, token in added.items() if token.special}
        # Named special tokens need not be among the added ones.
        specials |= dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        self._special = re.compile(
            # Longest first: an alternation takes the first that fits.
            "|".join(re.escape(t) for t in sorted(specials.values(), key=len, reverse=True) if t) or r"(?!)"
        )
        self._special_ids = frozenset(specials)
        self._swallowing = frozenset(i for i, token in added.items() if token.lstrip or token.rstrip)
        self._eos = tokenizer.eos_token_id
        self._finders: dict[Renderer, AnswerFinder] = {}

    def encode(self, examples: Sequence[Example]) -> list[Encoded | RowError]:
        """Return one result per example, in order; a row that cannot be encoded gives its RowError.

        Raises CostlyTemplateError.
        """
        # Render conversations one by one (a template may refuse), then tokenize all texts in one call.
        turns = [(n, example) for n, example in enumerate(examples) if example.messages]
        results = dict(self._each(turns, self._written(self._with_spans)))
        rendered = {n: text for n, text in results.items() if isinstance(text, RenderedText)}
        encoded: dict[int, Encoded | RowError] = {n: e for n, e in results.items() if isinstance(e, RowError)}
        tokens = self._tokens([text.text for text in rendered.values()], chat=True)
        for (n, text), (ids, encoding) in zip(rendered.items(), tokens, strict=True):
            encoded[n] = self._lengthened(self._conversation(ids, encoding, text), text)
        plain = {n: example for n, example in enumerate(examples) if not example.messages}
        if self.images is not None:
            encoded |= {n: self._plain_with_images(example) for n, example in plain.items()}
            return [encoded[n] for n in range(len(examples))]
        texts = self._tokens([example.text for example in plain.values()], chat=False)
        for (n, example), (ids, _) in zip(plain.items(), texts, strict=True):
            encoded[n] = self._plain(ids, example.text[: example.begin])
        return [encoded[n] for n in range(len(examples))]

    def encode_prompts(self, examples: Sequence[Example]) -> list[Encoded | RowError]:
        """Return the conversations with the opening of the assistant's turn, without labels."""
        return self._without_labels(examples, self._prompt)

    def encode_whole(self, examples: Sequence[Example]) -> list[Encoded | RowError]:
        """Return texts, pairs of texts and conversations as they are: without labels, no end appended."""
        turns = [example for example in examples if example.messages]
        rendered = iter(self._without_labels(turns, self._whole))
        return [next(rendered) if example.messages else self._alone(example) for example in examples]

    def shortened(self, example: Example, most: int) -> Encoded:
        """Truncate a text, or a pair, to ``most`` tokens, as the tokenizer does.

        Its special tokens stay, and the longer of two texts is truncated first.
        """
        shorter = self._alone(example, most)
        assert isinstance(shorter, Encoded), "a text that was too long is empty"
        return shorter

    def _alone(self, example: Example, most: int | None = None) -> Encoded | RowError:
        """Encode a text, or two, with the tokenizer alone."""
        how = {} if most is None else {"truncation": "longest_first", "max_length": most}
        written = self._expanded(RenderedText(self._marked(example.text)), example)
        coded = self.tokenizer(
            written.text, example.pair or None, return_attention_mask=False, verbose=False, **how
        )
        ids = np.array(self._marked_once(written.text, coded["input_ids"]), np.int32)
        types = [] if not example.pair else coded.get("token_type_ids", [])
        second = types.index(1) if 1 in types else 0
        none = np.zeros(len(ids), np.bool_)
        return self._lengthened(Encoded(ids, none, second=second), written) if len(ids) else RowError("empty")

    def _without_labels(
        self, examples: Sequence[Example], render: Callable[[Example], RenderedText]
    ) -> list[Encoded | RowError]:
        results: list[Encoded | RowError] = []
        rendered = self._each(enumerate(examples), self._written(render))
        for example, (_, text) in zip(examples, rendered, strict=True):
            if isinstance(text, RowError):
                results.append(text)
                continue
            ids = self._tokens([text.text], chat=bool(example.messages))[0][0]
            labelled = np.zeros(len(ids), np.bool_)
            whole = self._lengthened(Encoded(ids, labelled, text.left_out), text)
            results.append(whole if len(ids) else RowError("empty"))
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
            with (
                resource_limits.bounded_memory(),
                resource_limits.bounded_time(self.renderers.templates.values()),
            ):
                for number, example in examples:  # noqa: B007
                    try:
                        done.append((number, render(example)))
                    except RowError as error:
                        done.append((number, error))
        except (resource_limits.SpentError, MemoryError) as error:
            raise CostlyTemplateError(resource_limits.limit_of(error), number) from None
        return done

    def _written(self, render: Callable[[Example], RenderedText]) -> Callable[[Example], RenderedText]:
        """Return a rendering that also writes the tokens of pictures."""
        return render if self.images is None else lambda example: self._expanded(render(example), example)

    def _expanded(self, rendered: RenderedText, example: Example) -> RenderedText:
        """Return a rendered text with the tokens of its pictures, which no span has. Raises RowError."""
        if self.images is None:
            return rendered
        whole = self.images.expanded(rendered.text, example.images)
        if not whole.counts:
            return rendered
        spans = [(0, len(whole.text))] if rendered.spans is None else whole.moved(rendered.spans)
        spans, answers = whole.without_pictures(spans), tuple(whole.moved(rendered.answers))
        return RenderedText(whole.text, spans, rendered.left_out, answers, whole.counts, whole.runs)

    def _lengthened(self, encoded: Encoded, rendered: RenderedText) -> Encoded | RowError:
        """Return tokens with all those of pictures, of which a text has one for each run; none has loss."""
        if self.images is None:
            return encoded
        try:
            repeats = self.images.repeats(encoded.input_ids, rendered.runs)
        except RowError as error:
            return error
        if not rendered.runs:
            return encoded
        # Where each former token begins now.
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(repeats)])
        features = encoded.input_ids == self.images.marks.token_id
        return encoded._replace(
            input_ids=np.repeat(encoded.input_ids, repeats),
            labelled=np.repeat(encoded.labelled & ~features, repeats),
            second=int(starts[encoded.second]),
            answers=tuple((int(starts[start]), int(starts[stop])) for start, stop in encoded.answers),
            images=rendered.images,
        )

    def _marked(self, text: str) -> str:
        """Return a plain text with the written form of a picture in place of each slot."""
        if self.images is None or not has_slot(text):
            return text
        written = self.images.marks.written
        return SLOT.sub(lambda _: written, text)

    def _plain_with_images(self, example: Example) -> Encoded | RowError:
        try:
            text = self._expanded(RenderedText(self._marked(example.text)), example)
            prompt = replace(
                example, images=example.images[: len(SLOT.findall(example.text[: example.begin]))]
            )
            before = self._expanded(RenderedText(self._marked(example.text[: example.begin])), prompt).text
        except RowError as error:
            return error
        ids, encoding = self._tokens([text.text], chat=False)[0]
        encoded = self._plain(ids, before)
        if encoding is not None and text.images:
            encoded.labelled[self._of_pictures(ids, encoding, text)] = False
        return self._lengthened(encoded, text)

    def _of_pictures(
        self, ids: NDArray[np.int32], encoding: Encoding, text: RenderedText
    ) -> NDArray[np.int64]:
        """Return the places in ``ids`` of a text's tokens for its pictures, with those around them."""
        theirs = np.array([end > start for start, end in encoding.offsets])
        for span in text.spans or ():
            theirs[self._tokens_within(text.text, encoding, span)] = False
        doubled = encoding.ids[:2] != ids[:2].tolist()  # a beginning that was there twice
        return np.flatnonzero(theirs[int(doubled) :][: len(ids)])

    def turns_of_tokens(self, example: Example) -> list[int | None]:
        """Return the turn that wrote each token of a conversation; None where that is unknown.

        Raises RowError.
        """
        if not example.messages:
            return []
        renderer = self.renderers.of(example)
        text, turns, _ = renderer.render(example, renderer.template.render_whole)[1]
        runs: tuple[int, ...] = ()
        if self.images is not None and turns is not None:
            whole = self.images.expanded(text, example.images)
            text, turns, runs = whole.text, [whole.moved(regions) for regions in turns], whole.runs
        encoding = self._tokens([text], chat=True)[0][1]
        if encoding is None or turns is None:
            return []
        # Character by character: an inner turn overwrites the one around it.
        owner: dict[int, int] = {
            character: n for n, regions in enumerate(turns) for a, b in regions for character in range(a, b)
        }
        ends = (self._own_characters(text, encoding, token)[1] for token in range(len(encoding)))
        # By its last character: a token may begin with the blank before a turn.
        owners = [owner.get(end - 1) for end in ends]
        if self.images is None or not runs:
            return owners
        repeats = self.images.repeats(np.array(encoding.ids, np.int32), runs)
        return [of for of, count in zip(owners, repeats.tolist(), strict=True) for _ in range(count)]

    def _own_characters(self, text: str, encoding: Encoding, token: int) -> Span:
        """Return a token's characters, without white space that it absorbs."""
        start, end = encoding.offsets[token]
        if encoding.ids[token] not in self._swallowing or not text[start:end].strip():
            return start, end
        return end - len(text[start:end].lstrip()), start + len(text[start:end].rstrip())

    def _tokens_within(self, text: str, encoding: Encoding, span: Span) -> slice:
        """Return the tokens that overlap a span with their own characters."""
        first, last = _token_range(encoding, *span)
        if first <= last and self._own_characters(text, encoding, first)[1] <= span[0]:
            first += 1
        if first <= last and self._own_characters(text, encoding, last)[0] >= span[1]:
            last -= 1
        return slice(first, last + 1)

    def stop_token_ids(self) -> tuple[int, ...]:
        """Return the tokens that end an answer: end of text, and the template's end of turn."""
        stops = {} if self._eos is None else {int(self._eos): None}
        # with a tool, too: such rows may have a template of their own
        for tools in ((), (_TOOL,)) if self.renderers.templates else ():
            encoded = self.encode([Example(messages=_TURNS, tools=tools)])[0]
            trained = [] if isinstance(encoded, RowError) else encoded.input_ids[encoded.labelled].tolist()
            # The last two: the end of turn, and a line break after it that some templates train.
            stops |= {i: None for i in trained[-2:] if i in self._special_ids}
        return tuple(stops)

    def closing(self) -> tuple[int, ...]:
        """Return the tokens that close an answer in training rows: its stop token and the template's text
        after it. Empty without a template.
        """
        if not self.renderers.templates:
            return ()
        encoded, stops = self.encode([Example(messages=_TURNS)])[0], self.stop_token_ids()
        if isinstance(encoded, RowError):
            return ()
        ids = encoded.input_ids.tolist()
        ends = [n for n in np.flatnonzero(encoded.labelled)[-2:].tolist() if ids[n] in stops]
        return tuple(ids[ends[0] :]) if ends else ()

    def _tokens(self, texts: list[str], *, chat: bool) -> list[tuple[NDArray[np.int32], Encoding | None]]:
        """Return (ids int32 [n], the tokenizer's ``Encoding`` or None) of each text.

        Templates write their special tokens themselves.
        """
        if not texts:
            return []
        coded = self.tokenizer(texts, add_special_tokens=not chat, return_attention_mask=False, verbose=False)
        encodings = coded.encodings or [None] * len(texts)
        return [
            (np.array(ids if chat else self._marked_once(text, ids), np.int32), encoding)
            for text, ids, encoding in zip(texts, coded["input_ids"], encodings, strict=True)
        ]

    def _marked_once(self, text: str, ids: list[int]) -> list[int]:
        """Remove the tokenizer's BOS and EOS if the text already has them."""
        bos, eos = self.tokenizer.bos_token, self.tokenizer.eos_token
        if bos and text.startswith(bos) and ids[:2] == [self.tokenizer.bos_token_id] * 2:
            ids = ids[1:]
        return ids[:-1] if eos and text.endswith(eos) and ids[-2:] == [self._eos] * 2 else ids

    def _plain(self, ids: NDArray[np.int32], prompt: str) -> Encoded:
        """End a text, and label it from where the tokens of ``prompt`` alone differ, as TRL's DPOTrainer."""
        if self._eos is not None and (len(ids) == 0 or ids[-1] != self._eos):
            ids = np.append(ids, np.int32(self._eos))
        labelled = np.ones(len(ids), np.bool_)
        if prompt:
            before = self._tokens([prompt], chat=False)[0][0][: len(ids)]
            # cumprod: 1 up to the first difference, so the sum is the length of the common prefix.
            labelled[: int(np.cumprod(before == ids[: len(before)]).sum())] = False
        return Encoded(ids, labelled)

    def _conversation(
        self, ids: NDArray[np.int32], encoding: Encoding | None, rendered: RenderedText
    ) -> Encoded:
        """Label the spans (None: all tokens).

        End the last answer with a special token, so that the model learns to stop.
        """
        labelled = np.full(len(ids), rendered.spans is None)
        for span in rendered.spans or ():
            assert encoding is not None  # spans are of characters, which only it maps to tokens
            labelled[self._tokens_within(rendered.text, encoding, span)] = True
        tokens = [self._tokens_within(rendered.text, encoding, span) for span in rendered.answers if encoding]
        answers = tuple((each.start, each.stop) for each in tokens)
        trained = np.flatnonzero(labelled)
        if self._eos is None or not len(trained) or self._is_ended(ids, trained):
            return Encoded(ids, labelled, rendered.left_out, answers=answers)
        # What the template wrote after the last answer would stand between it and its end.
        ids, labelled = ids[: trained[-1] + 1], labelled[: trained[-1] + 1]
        ids, labelled = np.append(ids, np.int32(self._eos)), np.append(labelled, True)
        return Encoded(ids, labelled, rendered.left_out, end_added=True, answers=answers)

    def _is_ended(self, ids: NDArray[np.int32], trained: NDArray[np.int64]) -> bool:
        """Return whether a special token ends the tokens ``trained``; only white space may follow it."""
        last = int(trained[-1])
        if int(ids[last]) in self._special_ids:
            return True
        follows = (
            len(trained) > 1 and int(trained[-2]) == last - 1 and int(ids[last - 1]) in self._special_ids
        )
        return follows and str(self.tokenizer.decode([int(ids[last])])).isspace()

    def _with_spans(self, example: Example) -> RenderedText:
        """Return the conversation with the spans of the turns that have loss."""
        trained = trained_turns(example, self.train_on)
        if example.whole or (self.train_on == "all" and trained is None):
            return self._whole(example)._replace(answers=self._answers(example))
        renderer = self.renderers.of(example)
        chat, rendered = renderer.render(example, renderer.template.render_whole)
        left_out = renderer.left_out.names(example, rendered.text) + idle_weights(example, self.train_on)
        if trained is None:
            numbers = range(example.learn_from, len(example.messages))
            trained = [n for n in numbers if example.messages[n]["role"] == "assistant"]
        if self.train_on == "all":
            return RenderedText(rendered.text, all_but(rendered, trained), left_out)
        finder = self._finder(renderer)
        spans = finder.spans(chat, rendered, trained)
        for (
            name
        ) in example.template_kwargs:  # one that changes the generation prompt alone may decide the loss
            rest = chat._replace(options={key: v for key, v in chat.options.items() if key != name})
            if (part := OPTION + name) in left_out and finder.spans(rest, rendered, trained) != spans:
                left_out = tuple(other for other in left_out if other != part)
        return RenderedText(rendered.text, spans, left_out, self._answers(example))

    def _answers(self, example: Example) -> tuple[Span, ...]:
        """Return the span of each answer, with loss or without, if requested. Raises RowError."""
        if not self.find_answers:
            return ()
        renderer = self.renderers.of(example)
        chat, rendered = renderer.render(example, renderer.template.render_whole)
        numbers = [n for n, turn in enumerate(example.messages) if turn["role"] == "assistant"]
        spans = [self._finder(renderer).spans(chat, rendered, [number]) for number in numbers]
        return tuple((found[0][0], found[-1][1]) for found in spans if found)

    def _whole(self, example: Example) -> RenderedText:
        renderer = self.renderers.of(example)
        text = renderer.text(example)
        return RenderedText(text, None, renderer.left_out.names(example, text))

    def _prompt(self, example: Example) -> RenderedText:
        renderer = self.renderers.of(example)
        _, text = renderer.render(example, lambda chat: renderer.template.render(chat, prompt=True))
        left_out = renderer.left_out.names(example, renderer.text(example))
        # What an option changes may be the opening of the answer alone, or nothing where it is the default.
        options = options_read(renderer.template.text) if example.template_kwargs else frozenset[str]()
        read = {OPTION + name for name in options}
        return RenderedText(text, None, tuple(name for name in left_out if name not in read))

    def _finder(self, renderer: Renderer) -> AnswerFinder:
        if renderer not in self._finders:
            self._finders[renderer] = AnswerFinder(renderer.template, self._special, self.tokenizer.bos_token)
        return self._finders[renderer]


def _token_range(encoding: Encoding, start: int, end: int) -> tuple[int, int]:
    """Return the first and last token that overlap the characters [start, end).

    Characters without a token (dropped white space) are skipped.
    """
    first, last = None, None
    while start < end and (first := encoding.char_to_token(start)) is None:
        start += 1
    while end > start and (last := encoding.char_to_token(end - 1)) is None:
        end -= 1
    if first is None or last is None:
        return 0, -1
    # A character may have several tokens (bytes), of which the encoding names the first
    while last + 1 < len(encoding.ids) and start < encoding.offsets[last + 1][1] <= end:
        last += 1
    return first, last
