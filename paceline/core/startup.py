"""Start quietly and fast: drop what libraries log on import, and collect no garbage."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

#: What importing torchao and bitsandbytes (peft does) says in every process of parts that nothing here uses,
#: by logger: kernels for other formats, and torch's version of pytrees. All else that these say is shown.
_OF_AN_IMPORT: dict[str, tuple[str, ...]] = {
    "bitsandbytes.backends.cpu.ops": ("Failed to load CPU gemm_4bit_forward",),  # from the hub
    "torchao": ("Failed to load ", "Skipping import of cpp extensions"),
    "torchao.kernel.intmm": ("Warning: Detected no triton",),
    "torch.utils._pytree": (
        "<enum 'KernelPreference'> is an Enum",
        "<enum 'ScaleCalculationMode'> is an Enum",
    ),
}


def quiet_imports() -> None:
    """Filter loggers of libraries. Imports none of them; call it before they are imported."""
    drop(_OF_AN_IMPORT)


def drop(messages: Mapping[str, tuple[str, ...]]) -> None:
    """Drop messages that contain one of these texts, by logger; once however often it is called."""
    for name, texts in messages.items():
        logger = logging.getLogger(name)
        if not any(isinstance(present, _Without) for present in logger.filters):
            logger.addFilter(_Without(texts))


class _Without(logging.Filter):
    def __init__(self, texts: tuple[str, ...]) -> None:
        super().__init__()
        self._texts = texts

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not any(text in message for text in self._texts)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Inside, Python looks for no garbage; what is there at the end is left out of later collections.

    Modules and a plan are made to stay. A command that imports for half a second spends a sixth of it on
    looking through them, half of that when it exits.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # What is there now stays for good: later collections need not look at it
        gc.freeze()
        if enabled:
            gc.enable()
