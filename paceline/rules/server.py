"""Rules for a generation server: its address, and that it can receive whole weights."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from paceline.config.sections.rollout import ServerOptions
from paceline.core.diagnostics import Diagnostic, Severity
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
        yield c.problem(
            codes.ROLLOUT_SERVER_URL,
            "the address of the generation server must be its scheme, host and port",
            f"{_SERVER}.url",
            hint=(
                "url: http://127.0.0.1:8000 (without /v1 and without a key: set api_key_env to the"
                " variable that holds the key)"
            ),
        )
    elif server.api_key_env and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        yield c.problem(
            codes.ROLLOUT_SERVER_KEY,
            "the server's key would be sent over the network unencrypted",
            f"{_SERVER}.url",
            f"{_SERVER}.api_key_env",
            hint="use https, or a server on a private network",
            severity=Severity.WARNING,
        )


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
        yield c.problem(
            codes.ROLLOUT_SERVER_CUT,
            f"the server receives complete weights before each rollout, but {what}",
            _SERVER,
            *(places(wrong) or ("lora.quantization_bit",)),
            hint=(
                "remove training.rollout.server, so that the training processes generate the"
                " answers; or train without it"
            ),
        )


def tower(c: Context) -> Iterator[Diagnostic]:
    """rollout.server_tower"""
    if _server(c) is None or not c.facts.composite:
        return
    yield c.problem(
        codes.ROLLOUT_SERVER_TOWER,
        f"of this model ({c.facts.composite}) the language model alone is trained and could be sent, under"
        " names that a server of the whole model does not know",
        _SERVER,
        hint="remove training.rollout.server, so that the training processes generate the answers",
    )


SERVER_RULES: tuple[Rule, ...] = (address, weights, tower)
