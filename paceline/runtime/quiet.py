"""Silence progress bars of libraries, and warnings about kernels that this run does not use."""

from __future__ import annotations

import logging
from collections.abc import Callable

from paceline.core.import_notes import quiet_imports

_PACKS = "bitsandbytes"  # importing it logs about kernels for 4-bit weights in every process


def quiet_libraries(quantised: bool) -> None:
    """Disable Transformers' progress bars and, without 4-bit weights, all but bitsandbytes' errors.

    Call before anything is loaded in a rank.
    """
    from transformers.utils import logging as transformers_logging

    no_bars: Callable[[], None] = transformers_logging.disable_progress_bar
    no_bars()
    quiet_imports()
    if not quantised:
        logging.getLogger(_PACKS).setLevel(logging.ERROR)
