"""The special tokens of a tokenizer as texts, which generated text never shows.

All decoding of answers skips them (``skip_special_tokens``), as vLLM's server does by default and TRL does
for rewards. Expected answers are also compared without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.files import read_text
from paceline.core.json_types import as_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SpecialTexts:
    """Special tokens, to be found in texts and removed from them."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self.tokens = frozenset(filter(None, tokens))
        longest_first = sorted(self.tokens, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def found_in(self, text: str) -> list[str]:
        """Return the tokens in ``text``, each once, in their order."""
        return list(dict.fromkeys(self._any.findall(text)))

    def removed_from(self, text: str) -> str:
        """Return ``text`` without special tokens."""
        return self._any.sub("", text)


def special_texts(tokenizer: PreTrainedTokenizerBase) -> SpecialTexts:
    """Return the tokens that ``tokenizer.decode`` skips with ``skip_special_tokens``."""
    added = tokenizer.added_tokens_decoder.values()
    return SpecialTexts(token.content for token in added if token.special)


def inner_texts(tokenizer: PreTrainedTokenizerBase) -> SpecialTexts:
    """Return the ``special_texts`` that neither begin, end nor pad a text."""
    marks = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token}
    return SpecialTexts(special_texts(tokenizer).tokens - marks)


def special_in_files(folder: Path) -> frozenset[str]:
    """Return the special tokens that a tokenizer's files name; none if they cannot be read."""
    texts: set[str] = set()
    for name, key in (("tokenizer.json", "added_tokens"), ("tokenizer_config.json", "added_tokens_decoder")):
        try:
            listed = as_object(json.loads(read_text(folder / name))).get(key)
        except (OSError, ValueError):
            continue
        entries = listed.values() if isinstance(listed, dict) else listed
        if isinstance(entries, Iterable):
            tokens = [token for token in entries if isinstance(token, dict) and token.get("special")]
            texts |= {str(token.get("content") or "") for token in tokens}
    return frozenset(texts)
