"""Imports that Transformers makes in every process and that a rank does without."""

from __future__ import annotations

import sys
from importlib import import_module

_QUANTIZER = "transformers.quantizers.quantizer_torchao"
_ASKED, _FLATTEN = "is_torchao_available", "flatten_tensor_state_dict"
_PACKED = "torchao.prototype.safetensors.safetensors_support"


def spare_torchao() -> None:
    """Import Transformers' quantizers without torchao, which they need to write folders in its formats.

    It costs half a second of CPU a process. For a process of ours, before a model is built: nothing changes
    in one that has imported either. torchao itself can be imported afterwards as ever.
    """
    if _QUANTIZER in sys.modules or "torchao" in sys.modules:
        return
    utils = vars(import_module("transformers.utils"))
    is_available = utils[_ASKED]
    utils[_ASKED] = _no
    try:
        quantizer = vars(import_module(_QUANTIZER))
    finally:
        utils[_ASKED] = is_available
    quantizer[_ASKED] = is_available
    quantizer[_FLATTEN] = lambda state: getattr(import_module(_PACKED), _FLATTEN)(state)


def _no() -> bool:
    return False
