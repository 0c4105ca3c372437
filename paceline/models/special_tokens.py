"""The tokens that end, begin and pad what a model writes: one rule for rollouts, checkpoints and answers.

A base says in its configs which tokens end an answer, and may list several; the tokenizer and the chat
template say it, too. All of them end an answer, wherever the model writes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from paceline.core.json_types import Json, JsonObject
from paceline.protocols.special_tokens import SpecialTokens

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.protocols.model import HFModel

IDS = ("eos_token_id", "bos_token_id", "pad_token_id")


def listed(ids: Json) -> list[int]:
    """Return what a config says of a token as a list: it may be an id, a list of ids or nothing."""
    return [int(str(one)) for one in (ids if isinstance(ids, (list, tuple)) else [ids]) if one is not None]


def end_tokens(hf: HFModel, also: Iterable[int | None] = ()) -> list[int]:
    """Return every token that ends an answer: those of the model's generation config, and ``also``."""
    own = getattr(getattr(hf, "generation_config", None), "eos_token_id", None)
    return sorted({*listed(own), *(one for one in also if one is not None)})


def forget_defaults(hf: HFModel, stated: Mapping[str, Json]) -> None:
    """Take out of the generation config what a config's class has as its default: a model made from scratch
    knows no tokenizer. ``stated``: the config as the user wrote it.
    """
    if (generation := getattr(hf, "generation_config", None)) is not None:
        for name in IDS:
            if name not in stated:
                setattr(generation, name, None)


def align(config: JsonObject, read: PreTrainedConfig, generation: JsonObject, tokens: SpecialTokens) -> None:
    """Write a tokenizer's ids into a ``config.json`` and its ``generation_config.json``, as Transformers'
    ``align_special_tokens`` does: ids are added to what ends an answer and none is removed.

    ``read``: the config as Transformers reads it, with the defaults of its class.
    """
    for name, own in zip(IDS, (tokens.eos, tokens.bos, tokens.pad), strict=True):
        held = config[name] if name in config else getattr(read, name, None)
        several, made = isinstance(held, (list, tuple)), generation.get(name)
        if own is not None and not (own in listed(held) and own in listed(made)):
            rest = [one for one in listed(held) if one != own] if several else []
            config[name] = [own, *rest] if several and name == "eos_token_id" else own
            ends = [own, *(one for one in listed(made) if one != own)]
            generation[name] = ends if name == "eos_token_id" else own
    ends = listed(generation.get("eos_token_id"))
    if more := [one for one in tokens.ends if one not in ends]:
        generation["eos_token_id"] = [*ends, *more]
