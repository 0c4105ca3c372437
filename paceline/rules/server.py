"""Rules for a generation server: its address, and that it can receive whole weights."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from paceline.config.sections.rollout import ServerOptions
from paceline.core.diagnostics import Diagnostic
from paceline.rules import codes
from paceline.rules.base import Context, Rule
from paceline.rules.sharding import in_words, places, sharding_keys

_SERVER = "training.rollout.server"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _server(c: Context) -> ServerOptions | None:
    rollout = c.config.training.rollout
    return None if rollout is None else rollout.server


def address(c: Context) -> Iterator[Diagnostic]:
    """rollout.server_url, rollout.server_key"""
    server = _server(c)
    if server is None:
        return
    try:
        parts = urlsplit(server.url)
        good = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not parts.path.strip("/")
            and parts.port != 0
        )
    except ValueError:  # a port that is no number
        good = False
    if not good or parts.username is not None:
        yield c.at(codes.ROLLOUT_SERVER_URL(), f"{_SERVER}.url")
    elif server.api_key_env and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        yield c.at(codes.ROLLOUT_SERVER_KEY(), f"{_SERVER}.url", f"{_SERVER}.api_key_env")


def weights(c: Context) -> Iterator[Diagnostic]:
    """rollout.server_cut"""
    if _server(c) is None:
        return
    wrong = sharding_keys(c, ("tp",))
    lora = c.config.lora
    quantised = lora is not None and lora.quantization_bit is not None
    if wrong or quantised:
        what = (
            f"{in_words(wrong)} leaves only a part of them on each rank"
            if wrong
            else "they are quantised to 4 bits here"
        )
        yield c.at(
            codes.ROLLOUT_SERVER_CUT(detail=what), _SERVER, *(places(wrong) or ("lora.quantization_bit",))
        )


def tower(c: Context) -> Iterator[Diagnostic]:
    """rollout.server_tower"""
    if _server(c) is None or not c.facts.composite:
        return
    yield c.at(codes.ROLLOUT_SERVER_TOWER(composite=c.facts.composite), _SERVER)


SERVER_RULES: tuple[Rule, ...] = (address, weights, tower)
