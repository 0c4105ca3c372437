"""The user's cache directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the default cache directory of prepared data and probes: $PACELINE_CACHE, else
    ~/.cache/paceline.
    """
    return Path(environ.get("PACELINE_CACHE") or Path.home() / ".cache" / "paceline")
