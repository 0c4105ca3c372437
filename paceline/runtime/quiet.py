"""Libraries that talk where nobody has asked: their bars, and warnings about kernels that no run of this kind uses."""

from __future__ import annotations

import logging

_PACKS = "bitsandbytes"  # importing it tells every process of kernels for packed weights


def quiet_libraries(quantised: bool) -> None:
    """Before anything is loaded in a rank: no bars of Transformers; of bitsandbytes errors alone, where no weights are packed."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if not quantised:
        logging.getLogger(_PACKS).setLevel(logging.ERROR)
