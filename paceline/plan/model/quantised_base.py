"""Folders whose weights are stored quantized: no base to train on. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json
from paceline.plan import codes

_SETTINGS = {"fp8": "FineGrainedFP8Config(dequantize=True)", "mxfp4": "Mxfp4Config(dequantize=True)"}


def quantised_base(config: Mapping[str, Json], where: str) -> list[Diagnostic]:
    """Return why the weights that a folder's ``config.json`` tells of cannot be trained on; empty if they are
    plain. Adapters would learn around values that other kernels compute, and an export would have no scales.
    """
    inner = config.get("text_config")
    parts = (config, inner) if isinstance(inner, Mapping) else (config,)
    found = next((p["quantization_config"] for p in parts if p.get("quantization_config")), None)
    if not found:
        return []
    method = str(found.get("quant_method", "unnamed")) if isinstance(found, Mapping) else str(found)
    hint = "use the release of this model in bfloat16"
    if method in _SETTINGS:
        hint += f", or one that Transformers loaded with {_SETTINGS[method]} and saved"
    hint += "; lora.quantization_bit: 4 quantizes a bfloat16 base when it is loaded"
    what = f"the weights are stored quantized ({method}), and training starts from plain weights only"
    return [codes.PLAN_QUANTISED_BASE(what, where, f"quantization_config: {method}", hint)]
