"""Turn off progress bars of libraries, and the unused import of torchao."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

import torch

from paceline.runlog.library_lines import show_again

_REPORTS_WEIGHTS = "transformers.modeling_utils"
_REPORTS_KERNELS = "transformers.integrations.hub_kernels"
_QUANTIZER = "transformers.quantizers.quantizer_torchao"
_AVAILABILITY, _FLATTEN = "is_torchao_available", "flatten_tensor_state_dict"
_PACKED = "torchao.prototype.safetensors.safetensors_support"


def quiet_libraries(*, checks_weights: bool = True) -> None:
    """Disable Transformers' progress bars. Call before anything is loaded in a rank.

    ``checks_weights``: Paceline loads the models and rejects folders that lack weights. Otherwise
    Transformers prints its report of missing weights, and its lines about missing kernels on a device that
    could run them.
    """
    from transformers.utils import logging as transformers_logging

    no_bars: Callable[[], None] = transformers_logging.disable_progress_bar
    no_bars()
    if not checks_weights:
        show_again(_REPORTS_WEIGHTS)
    if torch.accelerator.is_available():
        show_again(_REPORTS_KERNELS)


def import_without_torchao() -> None:
    """Import Transformers' quantizers without torchao, which they need to write folders in its formats.

    The import costs half a second of CPU per process. Call it before a model is built: it has no effect if
    either is already imported. torchao can still be imported afterwards.
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
