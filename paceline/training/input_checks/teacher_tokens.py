"""Check that another model uses the same token ids as this run's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.data.tokenizer import TokenizerSpec, open_tokenizer
from paceline.training import codes


def other_tokens(name: str, tokenizer: Path) -> str:
    """Return how the tokens of ``name`` differ from those of ``tokenizer``; empty if they do not.

    ``name`` is a folder or a cached hub model. Raises DataError if it has no tokenizer.
    """
    mine, theirs = (_tokens(place) for place in (str(tokenizer), name))
    different = sorted(set(mine.items()) ^ set(theirs.items()))
    return f"{name}: {len(different)} tokens differ, first {json.dumps(different[0][0])}" if different else ""


def check_teacher_tokens(name: str, tokenizer: Path, where: str) -> None:
    """Raise ConfigError unless each token id means the same text for the teacher ``name`` as for
    ``tokenizer``.
    """
    if found := other_tokens(name, tokenizer):
        raise ConfigError(codes.ALGORITHM_TEACHER_TOKENS(where, found))


def _tokens(name: str) -> dict[str, int]:
    """Token -> id."""
    found: dict[str, int] = open_tokenizer(TokenizerSpec(name)).get_vocab()
    return found
