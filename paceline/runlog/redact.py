"""What leaves the process as text: secrets blotted out, control characters made visible."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_MIN_SECRET = 8  # a shorter value ("true", "1") would blot out ordinary words
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BLOT = "***"


def secrets_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables whose name speaks of a token, key, secret or password and that are long enough to be one."""
    found = {value for name, value in environ.items() if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET}
    return tuple(sorted(found))


class Redactor:
    """Replaces secret values, also in URL-encoded and base64 form, by ``***``."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) < _MIN_SECRET:
                continue
            raw = secret.encode("utf-8", "surrogateescape")
            encoded = base64.b64encode(raw).decode()
            forms |= {
                secret,
                quote(secret, safe=""),
                encoded,
                encoded.rstrip("="),
                base64.urlsafe_b64encode(raw).decode(),
            }
        longest_first = sorted(forms, key=lambda s: (-len(s), s))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        """``text`` without the secrets."""
        return self._pattern.sub(_BLOT, text) if self._pattern else text


def printable(text: str, *, keep_newlines: bool = False) -> str:
    """``text`` without ANSI sequences, other control characters escaped (``\\x07``): a sample or a name cannot forge log lines."""
    text = _ANSI.sub("", text)
    kept = "\t\n" if keep_newlines else "\t"
    return "".join(c if c in kept or (c.isprintable() or c == " ") else _escape(c) for c in text)


def _escape(char: str) -> str:
    code = ord(char)
    if char in "\n\r":
        return "\\n" if char == "\n" else "\\r"
    return f"\\x{code:02x}" if code < 0x100 else (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
