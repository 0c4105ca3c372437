"""Errors that ranks publish as text: a failing rank's, and that of a rank refused before all have arrived.

A message is parsed defensively: without a secret it may be forged.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import torch.distributed as dist

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.json_types import JsonObject
from paceline.runtime import codes
from paceline.runtime.process_group.signed_store import SignedStore
from paceline.runtime.rank_env import RankEnv

_ERROR, _OTHER_SECRET, _HEARD = "refused", "refused/secret", "refused/heard"
ALL_HERE = "all_here"  # set once every rank has arrived
HEAR_SECONDS = 20.0  # how long the store's host stays for ranks that are on their way


class PeerRefusedError(PacelineError):
    """This rank ends because another one was refused."""

    exit_code = ExitCode.PEER_FAILED


class Refusals:
    """Publish and read refusals through the store.

    If this process hosts the store, it stays up to ``hear_seconds`` so that the others can read them.
    """

    def __init__(
        self, store: dist.Store, env: RankEnv, secret: bytes, hear_seconds: float = HEAR_SECONDS
    ) -> None:
        self.signed = SignedStore(store, secret, env.store_prefix)
        self._store, self._env, self._hear_seconds = store, env, hear_seconds

    def publish(self, error: PacelineError, readers: int | None = None) -> None:
        """Publish this rank's error, and wake the waiting ranks; ``readers`` of all will come."""
        self.signed.set_first(_ERROR, failure_message(self._env.rank, error.diagnostics[0], error.exit_code))
        self._wake(readers)

    def publish_other_secret(self, fingerprint: str) -> None:
        """Report that this rank has another secret: the others would ignore whatever it signs."""
        # Unsigned, of necessity: the others would reject this rank's signature.
        self._store.set(_OTHER_SECRET, f"{self._env.rank} {fingerprint}")
        self._wake()

    def raise_any(self) -> None:
        """Raise PeerRefusedError if a rank was refused."""
        message = parsed_failure(self.signed.get(_ERROR))
        if message is not None:
            self._hear()
            rank, finding = message
            raise PeerRefusedError(
                replace(finding, what=f"rank {rank} was refused, so this one ends as well: {finding.what}")
            )
        if self._store.check([_OTHER_SECRET]):
            text = self._store.get(_OTHER_SECRET).decode("ascii", "replace")
            self._hear()
            rank_text, _, theirs = text.partition(" ")
            rank = int(rank_text) if rank_text.isascii() and rank_text.isdigit() else -1
            first = "none" if self._store.get("secret") == b"none" else "another"
            raise other_secret(rank, "none" if theirs == "none" else "one", first)

    def _wake(self, readers: int | None = None) -> None:
        # Waiting ranks wake by the key they wait for, and then look for a refusal.
        self._store.set(ALL_HERE, "0")  # the key for which the ranks that have come wait
        self._hear(readers)

    def _hear(self, readers: int | None = None) -> None:
        """Count this rank as informed; the store's host waits for the others."""
        self._store.add(_HEARD, 1)
        deadline = time.monotonic() + self._hear_seconds
        while self._env.hosts_store and time.monotonic() < deadline:
            if self._store.add(_HEARD, 0) >= (readers or self._env.world_size):
                return
            time.sleep(0.05)


def other_secret(rank: int, its: str, first: str) -> PacelineError:
    """Return the error of a rank whose secret is not rank 0's. Each secret is given by its fingerprint, or
    ``none``."""
    return PacelineError(
        codes.RUNTIME_STORE_SECRET(
            "PACELINE_STORE_SECRET_FILE", f"rank {rank}: {its}, rank 0: {first}", rank=rank
        )
    )


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
        rank, data = int(message["rank"]), message["diagnostic"]
        texts = {name: str(data.get(name, "")) for name in ("code", "what", "where", "found", "hint")}
        if not _CODE.fullmatch(texts["code"]) or not texts["what"]:
            return None
        return rank, Diagnostic.from_json({**texts, "evidence": dict(data.get("evidence") or {})})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _bounded(diagnostic: Diagnostic) -> JsonObject:
    """Return the diagnostic as JSON of at most LIMIT_BYTES: drop the evidence first, then truncate texts."""
    data = diagnostic.to_json()
    if len(json.dumps(data, default=str)) <= LIMIT_BYTES:
        return json.loads(json.dumps(data, default=str))
    # The store keeps values in rank 0's memory, and every rank reads this one.
    data["evidence"] = {"cut": "the full evidence is in the failing rank's log"}
    return {k: v[:4000] if isinstance(v, str) else v for k, v in data.items()}
