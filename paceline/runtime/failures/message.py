"""A rank's error as text for the other ranks, parsed defensively: without a secret it may be forged."""

from __future__ import annotations

import json
import re

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import JsonObject

LIMIT_BYTES = 32 * 1024
_CODE = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+")


def failure_message(rank: int, diagnostic: Diagnostic, exit_code: int) -> str:
    """Return the failing rank's message, at most ``LIMIT_BYTES``."""
    return json.dumps({"rank": rank, "exit_code": int(exit_code), "diagnostic": _bounded(diagnostic)})


def parsed_failure(text: str | None) -> tuple[int, Diagnostic] | None:
    """Parse a published message into (rank, error); None for no message, or for an invalid one."""
    if text is None:
        return None
    try:
        message = json.loads(text)
        rank, found = int(message["rank"]), message["diagnostic"]
        code, what, where, place, hint = (
            str(found.get(n, "")) for n in ("code", "what", "where", "found", "hint")
        )
        if not _CODE.fullmatch(code) or not what:
            return None
        parts = {"code": code, "what": what, "where": where, "found": place, "hint": hint}
        return rank, Diagnostic.from_json({**parts, "evidence": dict(found.get("evidence") or {})})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _bounded(diagnostic: Diagnostic) -> JsonObject:
    """Return the diagnostic as JSON of at most LIMIT_BYTES: drop the evidence first, then truncate texts."""
    data = diagnostic.to_json()
    if len(json.dumps(data, default=str)) <= LIMIT_BYTES:
        return json.loads(json.dumps(data, default=str))
    data["evidence"] = {"cut": "the full evidence is in the failing rank's log"}
    return {k: v[:4000] if isinstance(v, str) else v for k, v in data.items()}
