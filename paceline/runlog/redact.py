"""Redact secrets and escape control characters in all text that leaves the process.

Every output passes through here: files of a run, the console, messages to other ranks and to trackers
(``launch/program.py`` applies it to standard output and standard error).
"""

from __future__ import annotations

import base64
import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from paceline.core.diagnostics import Diagnostic
from paceline.core.security.secrets import MIN_LENGTH, SHAPED, secrets_in

# Format characters that only join or separate letters (Persian, Indic scripts, multi-part emoji); all others
# reorder or hide text.
_JOINERS = "\u200c\u200d"
_BLOT = "***"
# What precedes a secret: a URL's user info, a header, the name of a key of 40 hex digits (elsewhere a commit)
_USER_INFO = re.compile(r"(?<=://)[^/\s:@'\"]*:[^/\s@'\"]+(?=@)")
_HEADER = re.compile(
    r"(?i)((?:\bauthorization['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic|token)\s+)?(?=\S{8})"
    r"|\bbearer\s+(?=\S{16}))|(?:wandb|api[_-]?key)\W{0,10}(?=[0-9a-f]{40}\b))"
    r"[^\s'\",;]+"
)


class Redactor:
    """Replace secrets (also URL-encoded, as JSON or base64) and anything shaped like a token by ``***``."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) < MIN_LENGTH:
                continue
            raw = secret.encode("utf-8", "surrogateescape")
            encoded = base64.b64encode(raw).decode()
            forms |= {
                secret,
                quote(secret, safe=""),
                repr(secret)[1:-1],
                encoded,
                encoded.rstrip("="),
                base64.urlsafe_b64encode(raw).decode(),
            }
        longest_first = sorted(forms, key=lambda s: (-len(s), s))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    @classmethod
    def of(cls, environ: Mapping[str, str], *names: str) -> Redactor:
        """Build from the secrets in an environment.

        The variables ``names`` hold secrets whatever they are called.
        """
        return cls((*secrets_in(environ), *(environ.get(name, "") for name in names)))

    def __call__(self, text: str) -> str:
        """Return ``text`` without the secrets."""
        text = self._pattern.sub(_BLOT, text) if self._pattern else text
        return _HEADER.sub(rf"\1{_BLOT}", _USER_INFO.sub(_BLOT, SHAPED.sub(_BLOT, text)))

    def data(self, value: Any) -> Any:
        """Redact every text in a value of JSON types, keys included."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {
                self(key) if isinstance(key, str) else key: self.data(item) for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return value

    def diagnostic(self, finding: Diagnostic) -> Diagnostic:
        """Redact every text of a diagnostic."""
        what, where, found, hint = map(self, (finding.what, finding.where, finding.found, finding.hint))
        evidence = self.data(finding.evidence)
        return dataclasses.replace(finding, what=what, where=where, found=found, hint=hint, evidence=evidence)


def printable(text: str, *, keep_newlines: bool = False) -> str:
    """Escape every character that a terminal or an editor interprets instead of showing.

    These are control characters, the start of ANSI escape sequences, and characters that reorder (bidi
    overrides) or hide text. So a sample, a name or a message cannot act on the terminal or forge a log line.
    """
    kept = "\t\n" if keep_newlines else "\t"
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept or _is_harmless(c) else _escape(c) for c in text)


def _is_harmless(char: str) -> bool:
    """Whether a character is a non-ASCII space or a joiner: not printable for Python, but plain text."""
    return char in _JOINERS or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    """Escape like a JSON string, except ``\\x1b`` and its like, which valid JSON never contains unescaped.

    So escaping a line of JSON leaves it valid JSON.
    """
    code = ord(char)
    if char in "\n\r":
        return "\\n" if char == "\n" else "\\r"
    if code < 0x20:
        return f"\\x{code:02x}"
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))
