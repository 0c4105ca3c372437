"""The text of an answer while its tokens come, and where a stop string ends it.

By vLLM's rules (v1/engine/detokenizer.py): tokens go through the tokenizer's own stream, which knows the
prompt; the stop string that is complete first ends the answer, and is no part of it unless that is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BROKEN = "�"  # of bytes that are no character yet
_CONTEXT = 4  # tokens that one character may be cut into


class TextRules(NamedTuple):
    """``keep``: a stop string is part of the answer; ``least``: tokens before which none ends it."""

    stops: tuple[str, ...] = ()
    keep: bool = False
    least: int = 0
    skip_special: bool = True


class Decoder:
    """One answer's ``text``. Its last characters are held back while they may begin a stop string."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, prompt: Sequence[int], rules: TextRules) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(ids=list(prompt), skip_special_tokens=rules.skip_special)
        self._rules = rules
        self._held = 0 if rules.keep else max((len(s) - 1 for s in rules.stops), default=0)
        self._given = 0
        self._count = 0
        self.text = ""

    def feed(self, token: int, is_end: bool) -> str | None:
        """Take the next token; ``is_end``: it ends the answer. Return the stop string that does."""
        self._count += 1
        if not is_end or self._rules.keep:
            fresh = self._step(token)
            self.text += fresh
            if fresh and self._count > self._rules.least:
                return self._stopped(len(fresh))
        return None

    def delta(self, finished: bool) -> str:
        """Return the text that was not given yet."""
        end = len(self.text) if finished else len(self.text) - self._held
        start, self._given = self._given, max(self._given, end)
        return self.text[start : self._given]

    def _step(self, token: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception as error:  # its own class, of Rust
            if "Invalid prefix" not in str(error):  # after bytes that are no UTF-8
                raise
            self._stream = DecodeStream(skip_special_tokens=self._rules.skip_special)
            return self._stream.step(self._tokenizer, token) or ""

    def _stopped(self, fresh: int) -> str | None:
        ends: list[tuple[int, int, str]] = []
        for number, stop in enumerate(self._rules.stops):
            start = self.text.find(stop, max(0, len(self.text) - fresh - len(stop) + 1))
            if start >= 0:
                ends.append((start + len(stop), number, stop))
        if not ends:
            return None
        end, _, stop = min(ends)
        self.text = self.text[: end if self._rules.keep else end - len(stop)]
        return stop


class TokenTexts:
    """The texts of single tokens, for log-probabilities; ``as_ids``: their numbers in place of texts.

    A token that completes a character has the whole of it, those before have none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, as_ids: bool) -> None:
        self._tokenizer, self._as_ids = tokenizer, as_ids
        self._known: dict[int, str] = {}

    def of(self, token: int, before: Sequence[int]) -> str:
        """Return the text of ``token`` after the tokens ``before`` of its answer."""
        if self._as_ids:
            return f"token_id:{token}"
        text = self._alone(token)
        if not text.endswith(_BROKEN):
            return text
        for length in range(1, min(len(before), _CONTEXT) + 1):
            context = list(before[-length:])
            whole = self._decode([*context, token])
            if not whole.endswith(_BROKEN):
                return whole[len(self._clean(context)) :]
        return ""

    def _clean(self, context: list[int]) -> str:
        """Return the text of the tokens that are no part of an unfinished character."""
        while context and self._alone(context[-1]).endswith(_BROKEN):
            context = context[:-1]
        return self._decode(context) if context else ""

    def _alone(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._decode([token])
        return self._known[token]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))
