"""Where this package lies: for its children's import path, and for frames and sources that are its own."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
#: The folder that holds the package: a checkout, or site-packages.
ROOT = PACKAGE.resolve().parent
