"""Silence progress bars of libraries, and warnings about kernels and weights that say nothing here."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from paceline.core.import_notes import drop, quiet_imports

#: New or unused weights: loading a model refuses what is missing, and the log counts the rest.
_OF_LOADING = {"transformers.modeling_utils": ("LOAD REPORT",)}
#: Kernels that no CPU could use.
_OF_DEVICES = {"transformers.integrations.hub_kernels": ("is falling back to its reference PyTorch",)}
_PACKS = "bitsandbytes"  # importing it logs about kernels for 4-bit weights in every process


def quiet_libraries(quantised: bool, *, checks_weights: bool = True) -> None:
    """Disable Transformers' progress bars and, without 4-bit weights, all but bitsandbytes' errors.

    Call before anything is loaded in a rank. ``checks_weights``: models are loaded by code of ours, which
    refuses folders that lack weights, so Transformers' report of them is dropped.
    """
    from transformers.utils import logging as transformers_logging

    no_bars: Callable[[], None] = transformers_logging.disable_progress_bar
    no_bars()
    quiet_imports()
    if checks_weights:
        drop(_OF_LOADING)
    if not torch.accelerator.is_available():
        drop(_OF_DEVICES)
    if not quantised:
        logging.getLogger(_PACKS).setLevel(logging.ERROR)
