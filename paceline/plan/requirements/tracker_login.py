"""Whether a tracker can reach its server: its key, or the file that its login command has written."""

from __future__ import annotations

from collections.abc import Mapping
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

from paceline.config.registries.trackers import TRACKERS, TrackerFacts

_OFF = ("offline", "disabled", "local")


def has_key(name: str, environ: Mapping[str, str]) -> bool:
    """Whether the tracker ``name`` has the key of its server here, or needs none."""
    facts = TRACKERS[name]
    return not facts.key or bool(environ.get(facts.key)) or _has_login(facts, environ)


def meant_offline(name: str, environ: Mapping[str, str]) -> bool:
    """Whether the tracker's own variable says that it is not to send anything."""
    mode = TRACKERS[name].mode
    return bool(mode) and environ.get(mode, "").lower() in _OFF


def _has_login(facts: TrackerFacts, environ: Mapping[str, str]) -> bool:
    given = environ.get("NETRC") if facts.host else None
    home = environ.get("HOME", "~")
    path = Path(given or facts.login.replace("~", home, 1)).expanduser()
    address = environ.get("WANDB_BASE_URL", "") if facts.host else ""
    host = urlsplit(address).hostname or facts.host
    try:
        hosts = netrc(str(path)).hosts
    except (OSError, NetrcParseError, UnicodeError):
        return False
    return host in hosts if host else bool(hosts)
