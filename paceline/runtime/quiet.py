"""Silence progress bars of libraries, and warnings about kernels that this run does not use."""

from __future__ import annotations

import logging

_PACKS = "bitsandbytes"  # importing it logs about kernels for 4-bit weights in every process
#: What importing torchao (peft does) says in every process of parts that nothing here uses, by logger:
#: kernels for other formats, and torch's version of pytrees. All else that these say is shown.
_OF_AN_IMPORT = {
    "torchao": ("Failed to load ", "Skipping import of cpp extensions"),
    "torchao.kernel.intmm": ("Warning: Detected no triton",),
    "torch.utils._pytree": (
        "<enum 'KernelPreference'> is an Enum",
        "<enum 'ScaleCalculationMode'> is an Enum",
    ),
}


def quiet_libraries(quantised: bool) -> None:
    """Disable Transformers' progress bars and, without 4-bit weights, all but bitsandbytes' errors.

    Call before anything is loaded in a rank.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    for name, beginnings in _OF_AN_IMPORT.items():
        logging.getLogger(name).addFilter(_Without(beginnings))
    if not quantised:
        logging.getLogger(_PACKS).setLevel(logging.ERROR)


class _Without(logging.Filter):
    """Drops messages with these beginnings."""

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        super().__init__()
        self._beginnings = beginnings

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self._beginnings)
