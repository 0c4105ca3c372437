"""What leaves the process as text: secrets blotted out, control characters made visible. Every way out goes through here: files of a run, the console,
what other ranks and trackers are told (``launch/outlet.py`` puts it before standard output and standard error)."""

from __future__ import annotations

import base64
import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from paceline.core.diagnostics import Diagnostic
from paceline.core.secret_values import MIN_LENGTH, secrets_in
from paceline.core.secrets import SHAPED

# Format characters that only join or part letters (Persian and Indic scripts, emoji of several parts); the other ones reorder or hide text
_JOINERS = "\u200c\u200d"
_BLOT = "***"
# What stands beside a secret: the user of an address, a header, the word for a key of 40 hex digits (which elsewhere is a commit)
_USER_INFO = re.compile(r"(?<=://)[^/\s:@'\"]*:[^/\s@'\"]+(?=@)")
_HEADER = re.compile(
    r"(?i)((?:\bauthorization['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic|token)\s+)?(?=\S{8})|\bbearer\s+(?=\S{16}))|(?:wandb|api[_-]?key)\W{0,10}(?=[0-9a-f]{40}\b))"
    r"[^\s'\",;]+"
)


class Redactor:
    """Replaces secret values, also in URL-encoded, JSON and base64 form, and what has the shape of a token, by ``***``."""

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
        """For the secrets that an environment holds; the variables ``names`` hold some whatever they are called."""
        return cls((*secrets_in(environ), *(environ.get(name, "") for name in names)))

    def __call__(self, text: str) -> str:
        """``text`` without the secrets."""
        text = self._pattern.sub(_BLOT, text) if self._pattern else text
        return _HEADER.sub(rf"\1{_BLOT}", _USER_INFO.sub(_BLOT, SHAPED.sub(_BLOT, text)))

    def data(self, value: Any) -> Any:
        """The same of every text in JSON types, keys among them."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(key) if isinstance(key, str) else key: self.data(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return value

    def diagnostic(self, finding: Diagnostic) -> Diagnostic:
        """The same of a finding."""
        what, where, found, hint = map(self, (finding.what, finding.where, finding.found, finding.hint))
        evidence = self.data(finding.evidence)
        return dataclasses.replace(finding, what=what, where=where, found=found, hint=hint, evidence=evidence)


def printable(text: str, *, keep_newlines: bool = False) -> str:
    """``text`` with every character escaped that a terminal or an editor obeys instead of showing it: control characters, the escape of ANSI sequences,
    those that reorder text (bidi overrides) or hide. A sample, a name or a message cannot act, and cannot forge a line.
    """
    kept = "\t\n" if keep_newlines else "\t"
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept or _is_harmless(c) else _escape(c) for c in text)


def _is_harmless(char: str) -> bool:
    """Spaces of other scripts and joiners of letters: not printable for Python, and nothing but text."""
    return char in _JOINERS or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    """As a JSON string has it but for ``\\x1b`` and its like, which JSON never leaves bare: escaping JSON leaves it JSON."""
    code = ord(char)
    if char in "\n\r":
        return "\\n" if char == "\n" else "\\r"
    if code < 0x20:
        return f"\\x{code:02x}"
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))
