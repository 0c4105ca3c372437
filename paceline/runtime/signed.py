"""What ranks tell each other through the store, with a code that only they can make (HMAC-SHA256 over key and text).

Anybody who reaches the store's port can write any key. A value without a right code is ignored, and said once. Nothing is kept secret by it:
a stranger can still read what is there, and disturb (``docs/strategies.md``, "Who can reach the store").
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence

import torch.distributed as dist

_LENGTH = hashlib.sha256().digest_size * 2  # hexadecimal digits before the text


def fingerprint(secret: bytes) -> str:
    """What may be shown of a secret, so that ranks with different ones can tell; empty for none."""
    return hmac.new(secret, b"paceline/fingerprint", hashlib.sha256).hexdigest()[:16] if secret else ""


class SignedStore:
    """Texts by key. Without a secret they carry no code and everything is believed.

    ``name`` is bound into the codes: a value of another attempt is not believed in this one. ``on_forged(key)`` is called once, from the thread that
    met the first value without a right code. Every method may block for as long as the store does.
    """

    def __init__(
        self, store: dist.Store, secret: bytes, name: str, on_forged: Callable[[str], None] = lambda key: None
    ) -> None:
        self._store, self._secret, self._name = store, secret, name
        self._on_forged: Callable[[str], None] | None = on_forged

    def set(self, key: str, text: str) -> None:
        self._store.set(key, self._signed(key, text))

    def get(self, key: str) -> str | None:
        """The text at ``key``; None where there is none, or none that can be believed."""
        return self._believed(key, self._store.get(key)) if self._store.check([key]) else None

    def get_all(self, keys: Sequence[str]) -> list[str | None]:
        """The texts at ``keys``, all of which must be there (else this waits), in one call."""
        return [self._believed(key, value) for key, value in zip(keys, self._store.multi_get(list(keys)), strict=True)]

    def set_first(self, key: str, text: str) -> bool:
        """Set ``key`` unless a rank has; whether this was the first. What a stranger has put there gives way."""
        mine = self._signed(key, text)
        there = self._store.compare_set(key, "", mine)
        if there.decode("utf-8", "replace") == mine:
            return True
        if self._believed(key, there) is not None:
            return False
        self._store.set(key, mine)
        return True

    def add(self, key: str, count: int) -> int:
        """A counter carries no code: nothing may depend on it but how long somebody waits."""
        return int(self._store.add(key, count))

    def _signed(self, key: str, text: str) -> str:
        return f"{self._code(key, text)}{text}" if self._secret else text

    def _believed(self, key: str, value: bytes) -> str | None:
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            text = ""
        if self._secret:
            code, text = text[:_LENGTH], text[_LENGTH:]
            if not hmac.compare_digest(code.encode(), self._code(key, text).encode()):
                self._forged(key)
                return None
        return text

    def _code(self, key: str, text: str) -> str:
        return hmac.new(self._secret, "\0".join((self._name, key, text)).encode(), hashlib.sha256).hexdigest()

    def _forged(self, key: str) -> None:
        say, self._on_forged = self._on_forged, None
        if say is not None:
            say(key)
