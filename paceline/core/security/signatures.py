"""Signed texts: HMAC-SHA256 of the run's secret over a name, a key and the text, written before the text.

It gives no confidentiality. Without a secret nothing is signed or checked.
"""

from __future__ import annotations

import hashlib
import hmac

_LENGTH = hashlib.sha256().digest_size * 2  # hexadecimal digits before the text


def signed(secret: bytes, name: str, key: str, text: str) -> str:
    """Return ``text`` behind its signature."""
    return f"{_code(secret, name, key, text)}{text}" if secret else text


def verified(secret: bytes, name: str, key: str, value: bytes) -> str | None:
    """Return the text of a signed ``value``; None if its signature is invalid."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if secret:
        code, text = text[:_LENGTH], text[_LENGTH:]
        # in constant time: a stranger may measure how long a guess takes
        if not hmac.compare_digest(code.encode(), _code(secret, name, key, text).encode()):
            return None
    return text


def unverified(value: bytes) -> str:
    """Return the text of a ``value`` whose signer has another secret: anyone may have written it."""
    text = value.decode("utf-8", "replace")
    return text if text.startswith("{") else text[_LENGTH:]


def _code(secret: bytes, name: str, key: str, text: str) -> str:
    return hmac.new(secret, "\0".join((name, key, text)).encode(), hashlib.sha256).hexdigest()
