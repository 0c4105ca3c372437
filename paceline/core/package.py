"""Facts of this package: the folder it lies in, its version, and its cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
#: The folder that holds the package: a checkout, or site-packages.
ROOT = PACKAGE.resolve().parent


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the default cache directory of prepared data and probes: $PACELINE_CACHE, else
    ~/.cache/paceline.
    """
    return Path(environ.get("PACELINE_CACHE") or Path.home() / ".cache" / "paceline")


PACKAGE_VERSION = "0.7.0"  # as in pyproject.toml
