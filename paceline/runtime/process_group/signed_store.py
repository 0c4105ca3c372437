"""Signed messages between ranks through the store (HMAC-SHA256 over key and text).

Anyone who reaches the store's port can write any key. A value without a valid signature is ignored, with one
warning. It gives no confidentiality: strangers can still read values and disrupt the run
(``docs/explanation/failures.md``, "Who can reach the store").
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence

import torch.distributed as dist

from paceline.core.security.signatures import signed, verified


def fingerprint(secret: bytes) -> str:
    """Return a short hash of a secret, which may be shown to compare secrets; empty for none."""
    return hmac.new(secret, b"paceline/fingerprint", hashlib.sha256).hexdigest()[:16] if secret else ""


class SignedStore:
    """Signed texts by key. Without a secret nothing is signed or checked.

    ``name`` is part of the signature: a value of another attempt is not accepted in this one.
    ``on_forged(key)`` is called once, for the first value with an invalid signature, from the thread that
    read it. Every method may block for as long as the store does.
    """

    def __init__(
        self, store: dist.Store, secret: bytes, name: str, on_forged: Callable[[str], None] = lambda key: None
    ) -> None:
        self._store, self._secret, self._name = store, secret, name
        self._on_forged: Callable[[str], None] | None = on_forged

    def set(self, key: str, text: str) -> None:
        self._store.set(key, self._signed(key, text))

    def get(self, key: str) -> str | None:
        """Return the text at ``key``; None if there is none or its signature is invalid."""
        return self._believed(key, self._store.get(key)) if self._store.check([key]) else None

    def get_all(self, keys: Sequence[str]) -> list[str | None]:
        """Return the texts at ``keys`` in one call; waits until all keys exist."""
        return [
            self._believed(key, value)
            for key, value in zip(keys, self._store.multi_get(list(keys)), strict=True)
        ]

    def has(self, keys: Sequence[str]) -> bool:
        """Whether all ``keys`` exist, whoever has set them."""
        return bool(self._store.check(list(keys)))

    def remove(self, keys: Sequence[str]) -> None:
        """Delete those of ``keys`` that exist."""
        for key in keys:
            self._store.delete_key(key)

    def set_first(self, key: str, text: str) -> bool:
        """Set ``key`` unless a rank has set it; return whether this was the first.

        A forged value is replaced.
        """
        mine = self._signed(key, text)
        # Atomic in the store; an empty expectation means that the key must not exist.
        there = self._store.compare_set(key, "", mine)
        if there.decode("utf-8", "replace") == mine:
            return True
        if self._believed(key, there) is not None:
            return False
        self._store.set(key, mine)
        return True

    def add(self, key: str, count: int) -> int:
        """Add to an unsigned counter; only waiting times may depend on it."""
        return int(self._store.add(key, count))

    def _signed(self, key: str, text: str) -> str:
        return signed(self._secret, self._name, key, text)

    def _believed(self, key: str, value: bytes) -> str | None:
        text = verified(self._secret, self._name, key, value)
        if text is None:
            # Once: a flood of forged values must not become a flood of warnings.
            report, self._on_forged = self._on_forged, None
            if report is not None:
                report(key)
        return text
