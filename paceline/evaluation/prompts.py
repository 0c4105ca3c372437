"""Conversations for chat and the server, rendered and tokenized as in training.

A row of a data set and a conversation that is typed or sent give the same token ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.json_types import value_at
from paceline.data.chat_template.encode import CostlyTemplateError, Encoded, Encoder
from paceline.data.rows.examples import system_text, with_system
from paceline.data.rows.formats import Example
from paceline.data.rows.messages import turns_of
from paceline.data.rows.row_errors import REASONS
from paceline.data.rows.tools_and_documents import with_beside
from paceline.data.rows.values import Cell, RowError
from paceline.generation import codes
from paceline.generation.settings import run_of, stored_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_EXPLAINED = {
    "tools": "the chat template does not write tools, so the model would not see them",
    "tool_calls": "the chat template does not write calls of tools",
    "reasoning": "the chat template does not write reasoning",
    "documents": "the chat template does not write documents",
    "bad_tools": "tools must be a list of JSON schemas ({type: function, function: {name, parameters}})",
    "empty": "the conversation has no text",
}
Turns = Sequence[Mapping[str, Cell]]
_HINT = "train with model.chat_template: chatml, or use a tokenizer whose template you know"


@dataclass(frozen=True)
class RenderedPrompt:
    """Token ids; ``left_out``: the fields of the conversation that the chat template does not write."""

    ids: tuple[int, ...]
    left_out: tuple[str, ...] = ()


class PromptRenderer:
    """The prompts of one tokenizer. ``has_template``: whether it has a chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, system: str | None = None) -> None:
        """``system``: put before conversations that begin with no system turn."""
        self.has_template, self._system = bool(tokenizer.chat_template), system
        self._encoder = Encoder(tokenizer, "assistant")

    def of_chat(
        self, messages: Turns, beside: Mapping[str, Cell] | None = None, opening: bool = True
    ) -> RenderedPrompt:
        """Return a conversation up to the assistant's message; without ``opening``, as it is.

        ``beside``: tools, documents, chat_template_kwargs. Raises RowError, and CostlyTemplateError.
        """
        turns = turns_of([dict(message) for message in messages], "role", "content")
        example = with_system(with_beside(Example(messages=tuple(turns)), beside or {}), self._system)
        encode = self._encoder.encode_prompts if opening else self._encoder.encode_whole
        return _prompt(encode([example])[0])

    def of_text(self, text: str) -> RenderedPrompt:
        """Return a text as training reads it, without an end. Raises RowError."""
        return _prompt(self._encoder.encode_whole([Example(text=text)])[0])


def _prompt(encoded: Encoded | RowError) -> RenderedPrompt:
    if isinstance(encoded, RowError):
        raise encoded
    return RenderedPrompt(tuple(encoded.input_ids.tolist()), encoded.left_out)


def default_system(path: Path) -> str | None:
    """Return the system turn that the run at ``path`` was trained with; None for a folder, or without one.

    Raises ConfigError, DataError.
    """
    run = run_of(path)
    named = None if run is None else value_at(stored_config(run), "data.default_system")
    return system_text(named) if isinstance(named, str) else None


def prompts_of(tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Turns]) -> list[list[int]]:
    """Return the token ids of conversations up to the assistant's message. Raises ConfigError."""
    prompts = PromptRenderer(tokenizer)
    if not prompts.has_template:
        raise ConfigError(codes.GENERATION_NO_CHAT_TEMPLATE("chat_template"))
    return [_checked(prompts, messages) for messages in conversations]


#: What is wrong with the messages themselves, whatever the template.
_OF_THE_MESSAGES = (
    "not_text",
    "not_finite",
    "bad_messages",
    "several_texts",
    "unknown_role",
    "empty",
    "bad_tool_call",
)


def _checked(prompts: PromptRenderer, messages: Turns) -> list[int]:
    try:
        return list(prompts.of_chat(messages).ids)
    except CostlyTemplateError as error:
        message = "the chat template needs more time or memory than any conversation should"
        raise ConfigError(
            codes.GENERATION_TEMPLATE_COSTLY(message, "chat_template", error.detail, _HINT)
        ) from None
    except RowError as error:
        message, where, remedy = "the chat template cannot write this conversation", "chat_template", _HINT
        if error.reason in _OF_THE_MESSAGES:
            message, where = "a message is not one that a template can be given", "messages"
            remedy = "correct it; of a line that is not UTF-8 parts of characters are left: iconv -t UTF-8"
        raise ConfigError(
            codes.GENERATION_TEMPLATE_REFUSED(message, where, explained(error), remedy)
        ) from error


def explained(error: RowError) -> str:
    """Return what is wrong with a conversation, in words."""
    meaning = _EXPLAINED.get(error.reason) or REASONS[error.reason][1]
    return f"{meaning}: {error.detail}" if error.detail else meaning
