"""Noise and cost of libraries that say and do nothing here: progress bars, warnings, torchao's import."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib import import_module

import torch

from paceline.core.startup import drop, quiet_imports

#: New or unused weights: loading a model refuses what is missing, and the log counts the rest.
_OF_LOADING = {"transformers.modeling_utils": ("LOAD REPORT",)}
#: Kernels that no CPU could use.
_OF_DEVICES = {"transformers.integrations.hub_kernels": ("is falling back to its reference PyTorch",)}
_PACKS = "bitsandbytes"  # importing it logs about kernels for 4-bit weights in every process

_QUANTIZER = "transformers.quantizers.quantizer_torchao"
_AVAILABILITY, _FLATTEN = "is_torchao_available", "flatten_tensor_state_dict"
_PACKED = "torchao.prototype.safetensors.safetensors_support"


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


def import_without_torchao() -> None:
    """Import Transformers' quantizers without torchao, which they need to write folders in its formats.

    It costs half a second of CPU a process. For a process of ours, before a model is built: nothing changes
    in one that has imported either. torchao itself can be imported afterwards as ever.
    """
    if _QUANTIZER in sys.modules or "torchao" in sys.modules:
        return
    utils = vars(import_module("transformers.utils"))
    is_available = utils[_AVAILABILITY]
    utils[_AVAILABILITY] = lambda: False
    try:
        quantizer = vars(import_module(_QUANTIZER))
    finally:
        utils[_AVAILABILITY] = is_available
    quantizer[_AVAILABILITY] = is_available
    quantizer[_FLATTEN] = lambda state: getattr(import_module(_PACKED), _FLATTEN)(state)
