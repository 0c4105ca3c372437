"""What a rank says on the console of whoever started it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paceline.core.diagnostics import Diagnostic


def tell(diagnostics: Sequence[Diagnostic], rank: int, *, only_first: bool = False) -> None:
    """Findings to stderr; what every rank finds alike is said by rank 0 alone."""
    if only_first and rank != 0:
        return
    for diagnostic in diagnostics:
        print(diagnostic.render(), file=sys.stderr, flush=True)
