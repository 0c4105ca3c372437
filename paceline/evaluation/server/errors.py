"""Errors as OpenAI's clients show them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from pydantic import ValidationError

from paceline.core.json_types import JsonObject

_TYPES = {404: "NotFoundError", 405: "MethodNotAllowedError", 413: "RequestTooLargeError"}
_SHOWN = 3  # errors of one request
_LONG = 80  # characters of a value


class RequestError(Exception):
    """A request that is not answered: ``status`` of HTTP, and the field that is wrong."""

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
    """Return what pydantic found in the fields of a request, each named once.

    Of a union the member whose type the value has says what is wrong with it.
    """
    all_found = error.errors(include_url=False)
    found = dict.fromkeys((_place(one["loc"]) for one in all_found), "")
    for one in sorted(all_found, key=lambda one: one["type"].endswith("_type")):
        place = _place(one["loc"])
        value = repr(one["input"])
        explained = f"{one['msg']}, got {value[:_LONG]}{'…' if len(value) > _LONG else ''}"
        if one["type"] == "missing":
            explained = one["msg"]
        elif one["type"] == "value_error":
            explained = str(one["ctx"]["error"])
        found[place] = found[place] or explained
    lines = [f"{place}: {explained}" for place, explained in list(found.items())[:_SHOWN]]
    more = len(found) - len(lines)
    return RequestError("; ".join(lines) + (f"; and {more} more" if more else ""), next(iter(found)))


def _place(parts: tuple[int | str, ...]) -> str:
    """Return the field's place without the names that pydantic gives to members of a union."""
    kept = [part for part in parts if isinstance(part, int) or part.replace("_", "").isalnum()]
    names = [part for part in kept if part not in ("str", "int", "float", "bool")]
    return ".".join(map(str, names))
