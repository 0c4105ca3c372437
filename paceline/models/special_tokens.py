"""The EOS, BOS and padding tokens of a model: one rule for rollouts, checkpoints and answers.

A base model's configs, its tokenizer and the chat template may each name tokens that end an answer. All of
them end an answer, wherever the model generates one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.json_types import Json, JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.protocols.model import HFModel


#: in ``Batch.extras``: the place of a document's first token of its second text (0: one text)
SECOND = "second"


@dataclass(frozen=True)
class SpecialTokens:
    """A tokenizer's ids (None: it has no such token); ``ends``: every token with which it or its chat
    template ends an answer.
    """

    eos: int | None = None
    bos: int | None = None
    pad: int | None = None
    ends: tuple[int, ...] = ()


IDS = ("eos_token_id", "bos_token_id", "pad_token_id")


def listed(ids: Json) -> list[int]:
    """Return a config's token ids as a list, from an id, a list of ids or nothing."""
    return [
        int(str(token)) for token in (ids if isinstance(ids, (list, tuple)) else [ids]) if token is not None
    ]


def end_tokens(hf: HFModel, also: Iterable[int | None] = ()) -> list[int]:
    """Return every token that ends an answer: those of the model's generation config, and ``also``."""
    ends = getattr(getattr(hf, "generation_config", None), "eos_token_id", None)
    return sorted({*listed(ends), *(token for token in also if token is not None)})


def forget_defaults(hf: HFModel, stated: Mapping[str, Json]) -> None:
    """Remove a config class's default token ids from the generation config, since a model from scratch has no
    tokenizer. ``stated``: the config as the user wrote it.
    """
    if (generation := getattr(hf, "generation_config", None)) is not None:
        for name in IDS:
            if name not in stated:
                setattr(generation, name, None)


def align(config: JsonObject, read: PreTrainedConfig, generation: JsonObject, tokens: SpecialTokens) -> None:
    """Write a tokenizer's ids into a ``config.json`` and its ``generation_config.json``, as Transformers'
    ``align_special_tokens`` does. Ids are added to the tokens that end an answer; none is removed.

    ``read``: the config as Transformers reads it, with the defaults of its class.
    """
    for name, token in zip(IDS, (tokens.eos, tokens.bos, tokens.pad), strict=True):
        held = config[name] if name in config else getattr(read, name, None)
        several, generated = isinstance(held, (list, tuple)), generation.get(name)
        if token is not None and not (token in listed(held) and token in listed(generated)):
            rest = [other for other in listed(held) if other != token] if several else []
            config[name] = [token, *rest] if several and name == "eos_token_id" else token
            ends = [token, *(other for other in listed(generated) if other != token)]
            generation[name] = ends if name == "eos_token_id" else token
    ends = listed(generation.get("eos_token_id"))
    if more := [other for other in tokens.ends if other not in ends]:
        generation["eos_token_id"] = [*ends, *more]
