"""The embedding rows that training needs: those of the config, or more if the tokenizer has more tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_number, as_object
from paceline.plan.model.safetensors_headers import read_json

if TYPE_CHECKING:
    from paceline.config.sections.model import ModelSection

_MOST_BYTES = 64 << 20  # the largest tokenizer.json of the hub's known models has 35 MB


def with_vocabulary(config: JsonObject, model: ModelSection, folder: Path | None) -> JsonObject:
    """Return ``config`` with the ``vocab_size`` that the run will have (``models.factory``).

    Its own where the tokenizer is not here, fits, or must not resize it. A drawn model whose config names no
    size takes the tokenizer's. ``folder``: that of a tokenizer's files.
    """
    need = None if folder is None else tokenizer_rows(folder, (*model.add_tokens, *model.add_special_tokens))
    inner = as_object(config["text_config"]) if isinstance(config.get("text_config"), dict) else config
    have = inner.get("vocab_size", 0 if model.config is not None else None)
    if need is None or not isinstance(have, int) or need <= have or model.resize_embeddings == "never":
        return config
    multiple = max(1, model.embedding_multiple)
    rows: JsonObject = {"vocab_size": -(-need // multiple) * multiple}
    return {**config, **rows} if inner is config else {**config, "text_config": {**inner, **rows}}


def tokenizer_rows(folder: Path, added: tuple[str, ...]) -> int | None:
    """Return the largest token id + 1 with ``added`` tokens; None without a readable ``tokenizer.json``."""
    try:
        tokenizer = as_object(read_json(folder / "tokenizer.json", _MOST_BYTES))
        known = _ids(as_object(tokenizer["model"])["vocab"])
        own = tokenizer.get("added_tokens") or []
        for entry in own if isinstance(own, list) else ():
            known[str(as_object(entry)["content"])] = as_number(as_object(entry)["id"])
    except (OSError, ValueError, KeyError, ConfigError):
        return None
    return int(max(known.values(), default=-1)) + 1 + len(set(added) - set(known))


def _ids(vocabulary: Json) -> dict[str, float]:
    """Return token → id of a ``vocab``: an object, or Unigram's pairs of token and score in their order."""
    if isinstance(vocabulary, dict):
        return {token: as_number(number) for token, number in vocabulary.items()}
    if not isinstance(vocabulary, list):
        raise ValueError("no vocabulary")
    return {str(pair[0]): float(at) for at, pair in enumerate(vocabulary) if isinstance(pair, list)}


def is_here(tokenizer: str | None) -> bool:
    """Whether a tokenizer's rows are known: it is a local folder whose ``tokenizer.json`` can be read."""
    return tokenizer is not None and tokenizer_rows(Path(tokenizer).expanduser(), ()) is not None
