"""Answers in the form of ``response_format``: JSON objects and JSON schemas, enforced by llguidance.

As in vLLM (v1/structured_output/backend_guidance.py), ``json_object`` is the schema ``{"type": "object"}``,
and ``strict`` changes nothing: each schema is enforced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from paceline.evaluation.server.shapes import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerFast

_FIELD = "response_format"
_LONG = 300  # characters of an explanation


def schema_of(form: Mapping[str, JsonValue] | None) -> JsonValue:
    """Return the JSON schema of a ``response_format``; None: any text. Raises RequestError."""
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise RequestError(
            f"{_FIELD}.type must be text, json_object or json_schema, got {kind!r}", f"{_FIELD}.type"
        )
    field, content = f"{_FIELD}.json_schema", form.get("json_schema")
    if not isinstance(content, dict):
        raise RequestError(f'{field} must be {{"name": …, "schema": …}}, got {content!r:.80}', field)
    if not isinstance(content.get("name"), str):
        raise RequestError(f"{field}.name must be a text, got {content.get('name')!r:.80}", f"{field}.name")
    schema = content.get("schema")
    if not isinstance(schema, dict):
        raise RequestError(f"{field}.schema must be a JSON schema, got {schema!r:.80}", f"{field}.schema")
    return schema


class Grammar:
    """The grammar state of one answer; each token advances it."""

    def __init__(self, matcher: LLMatcher, words: int) -> None:
        self._matcher, self._words = matcher, words

    def allowed(self) -> Tensor:
        """Return which token may come next: bool [V]. Raises RuntimeError past the library's bounds."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise RuntimeError(f"the grammar of {_FIELD}: {self._matcher.get_error()}"[:_LONG])
        bits = np.unpackbits(packed, bitorder="little")[: self._words]
        return torch.from_numpy(np.pad(bits, (0, self._words - len(bits))).astype(bool))

    def take(self, token: int) -> None:
        """Take the next token. Raises RuntimeError for one that was not allowed."""
        if not self._matcher.consume_token(token):
            raise RuntimeError(f"the grammar of {_FIELD}: {self._matcher.get_error()}"[:_LONG])


class Grammars:
    """The grammars over one tokenizer; the model has ``words`` token ids, ``ends`` end an answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, words: int, ends: tuple[int, ...]) -> None:
        self._of, self._words, self._ends = tokenizer, words, ends

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        if find_spec("llguidance") is None:
            raise RequestError(
                f"{_FIELD} needs the package llguidance where the server runs: pip install 'paceline[serve]'",
                _FIELD,
            )
        from llguidance.hf import from_tokenizer

        if not self._ends:
            raise RequestError(f"{_FIELD}: the model has no token that ends an answer", _FIELD)
        try:
            return from_tokenizer(self._of, eos_token=list(self._ends))
        except ValueError as error:
            raise RequestError(f"{_FIELD}: llguidance cannot read the tokenizer: {error}"[:_LONG]) from error

    def of(self, form: Mapping[str, JsonValue] | None) -> Callable[[], Grammar] | None:
        """Return a factory of an answer's grammar. Raises RequestError for a schema that cannot be
        enforced."""
        schema = schema_of(form)
        if schema is None:
            return None
        tokenizer = self._tokenizer
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
            wrong = LLMatcher.validate_grammar(grammar, tokenizer)
            if not wrong:  # a reference to itself passes, and has no first token
                first = LLMatcher(tokenizer, grammar, log_level=0)
                # Fails at the first token, not when the grammar is read
                first.compute_bitmask()
                wrong = "a reference leads to itself, with no token between" if first.is_error() else ""
        except ValueError as error:
            wrong = str(error)
        if wrong:
            field = f"{_FIELD}.json_schema.schema"
            raise RequestError(f"{field} cannot be held: {wrong}"[:_LONG], field)
        return lambda: Grammar(LLMatcher(tokenizer, grammar, log_level=0), self._words)
