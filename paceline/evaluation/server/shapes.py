"""Common parts of the answers of all APIs: ids, usage, the order of log-probabilities, and errors in OpenAI's
format: ``{"error": {"message", "type", "param", "code"}}``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from pydantic import ValidationError

from paceline.core.json_types import JsonObject
from paceline.core.package import PACKAGE_VERSION
from paceline.generation.decoding.stepwise import TokenScore

FLOOR = -9999.0  # in place of minus infinity, which JSON lacks
FINGERPRINT = f"paceline-{PACKAGE_VERSION}"


def head(kind: str, object_name: str, model: str) -> JsonObject:
    """Return the fields that an answer begins with."""
    return {
        "id": f"{kind}-{secrets.token_hex(8)}",
        "object": object_name,
        "created": int(time.time()),
        "model": model,
    }


def usage(prompts: Sequence[Sequence[int]], written: int, *, detailed: bool = True) -> JsonObject:
    """Return the token counts; ``detailed``: with the detail fields, whose values are unknown here."""
    read = sum(map(len, prompts))
    counted: JsonObject = {
        "prompt_tokens": read,
        "total_tokens": read + written,
        "completion_tokens": written,
    }
    return (
        {**counted, "prompt_tokens_details": None, "completion_tokens_details": None} if detailed else counted
    )


def ordered(token: int, logprob: float, likeliest: Sequence[TokenScore], most: int) -> list[TokenScore]:
    """Return the chosen token and then the likeliest others, ``most`` at most."""
    return [TokenScore(token, logprob), *(score for score in likeliest if score.token != token)][:most]


def floored(logprob: float) -> float:
    """Return a log-probability as a finite number, for JSON."""
    return max(logprob, FLOOR)


def nulls(*names: str) -> JsonObject:
    """Return the fields of vLLM's answers that are always null here."""
    return dict.fromkeys(names, None)


_TYPES = {404: "NotFoundError", 405: "MethodNotAllowedError", 413: "RequestTooLargeError"}
_SHOWN = 3  # errors of one request
_LONG = 80  # characters of a value


class RequestError(Exception):
    """A refused request: the HTTP ``status``, and the wrong field."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.status = message, param, status

    def answer(self) -> JsonObject:
        """Return the body of the answer."""
        kind = _TYPES.get(self.status, "InternalServerError" if self.status >= 500 else "BadRequestError")
        error: JsonObject = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.status,
        }
        return {"error": error}


def misread(error: ValidationError) -> RequestError:
    """Return pydantic's errors in a request, one per field.

    For a union, use the error of the member whose type the value has.
    """
    all_found = error.errors(include_url=False)
    messages = dict.fromkeys((_place(item["loc"]) for item in all_found), "")
    for item in sorted(all_found, key=lambda item: item["type"].endswith("_type")):
        field = _place(item["loc"])
        value = repr(item["input"])
        explained = f"{item['msg']}, got {value[:_LONG]}{'…' if len(value) > _LONG else ''}"
        if item["type"] == "missing":
            explained = item["msg"]
        elif item["type"] == "value_error":
            explained = str(item["ctx"]["error"])
        messages[field] = messages[field] or explained
    lines = [f"{field}: {explained}" for field, explained in list(messages.items())[:_SHOWN]]
    more = len(messages) - len(lines)
    return RequestError("; ".join(lines) + (f"; and {more} more" if more else ""), next(iter(messages)))


def _place(parts: tuple[int | str, ...]) -> str:
    """Return the field's path without pydantic's names for members of a union."""
    kept = [part for part in parts if isinstance(part, int) or part.replace("_", "").isalnum()]
    return ".".join(map(str, [part for part in kept if part not in ("str", "int", "float", "bool")]))
