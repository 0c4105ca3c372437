"""What the answers of both kinds of request have in common: ids, usage, and log-probabilities' order."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from paceline.core.json_types import Json, JsonObject
from paceline.core.version import PACKAGE_VERSION
from paceline.generation.decoding.stepwise import TokenScore

FLOOR = -9999.0  # in place of minus infinity, which JSON lacks
FINGERPRINT = f"paceline-{PACKAGE_VERSION}"


def head(kind: str, what: str, model: str) -> JsonObject:
    """Return the fields that an answer begins with."""
    return {
        "id": f"{kind}-{secrets.token_hex(8)}",
        "object": what,
        "created": int(time.time()),
        "model": model,
    }


def usage(prompts: Sequence[Sequence[int]], written: int, *, whole: bool = True) -> JsonObject:
    """Return the numbers of tokens; ``whole``: with the details, which are not known here."""
    read = sum(map(len, prompts))
    counted: JsonObject = {
        "prompt_tokens": read,
        "total_tokens": read + written,
        "completion_tokens": written,
    }
    return {**counted, "prompt_tokens_details": None, "completion_tokens_details": None} if whole else counted


def ordered(token: int, logprob: float, likeliest: Sequence[TokenScore], most: int) -> list[TokenScore]:
    """Return the chosen token and then the likeliest others, ``most`` at most."""
    own = TokenScore(token, logprob)
    return [own, *(one for one in likeliest if one.token != token)][:most]


def floored(logprob: float) -> float:
    """Return a log-probability that JSON can write."""
    return max(logprob, FLOOR)


def nulls(*names: str) -> JsonObject:
    """Return fields that vLLM's answers have and that say nothing here."""
    return dict.fromkeys(names, None)


def chunk(base: JsonObject, choice: JsonObject, **more: Json) -> JsonObject:
    """Return one event of a stream."""
    return {**base, "choices": [choice], **more}
