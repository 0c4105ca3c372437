"""Check that another model uses the same token ids as this run's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer
from paceline.training import codes


def other_tokens(name: str, tokenizer: Path) -> str:
    """Return how the tokens of ``name`` differ from those of ``tokenizer``; empty if they do not.

    ``name`` is a folder or a cached hub model. Raises DataError if it has no tokenizer.
    """
    mine, theirs = (_tokens(place) for place in (str(tokenizer), name))
    different = sorted(set(mine.items()) ^ set(theirs.items()))
    return f"{name}: {len(different)} tokens differ, first {json.dumps(different[0][0])}" if different else ""


def check_tokens(name: str, tokenizer: Path, where: str, role: str, *, whole: bool) -> None:
    """Raise ConfigError unless a token id that ``name``, the model of a role, knows is the same text to it.

    ``whole``: the vocabularies must be equal, as for distributions over them.
    """
    mine, theirs = (_tokens(place) for place in (str(tokenizer), name))
    by_id = {number: token for token, number in theirs.items()}
    if whole:
        found = other_tokens(name, tokenizer)
    else:
        other = sorted(token for token, number in mine.items() if by_id.get(number, token) != token)
        found = f"{name}: {len(other)} tokens differ, first {json.dumps(other[0])}" if other else ""
    if found:
        raise ConfigError(codes.ALGORITHM_TEACHER_TOKENS(where, found, role=role))


def has_tokenizer(name: str) -> bool:
    """Whether a model can be asked for its tokens: a hub name, or a folder with a tokenizer's files."""
    folder = Path(name).expanduser()
    return not folder.is_dir() or any(folder.glob("tokenizer*"))


def _tokens(name: str) -> dict[str, int]:
    """Token -> id."""
    found: dict[str, int] = open_tokenizer(TokenizerSpec(name)).get_vocab()
    return found
