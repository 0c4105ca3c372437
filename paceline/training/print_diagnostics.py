"""Diagnostics of a rank on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paceline.core.diagnostics import Diagnostic


def print_diagnostics(diagnostics: Sequence[Diagnostic], rank: int, *, only_first: bool = False) -> None:
    """Print diagnostics to stderr; with ``only_first`` on rank 0 only, for what every rank finds alike."""
    if only_first and rank != 0:
        return
    for diagnostic in diagnostics:
        print(diagnostic.render(), file=sys.stderr, flush=True)
