"""Choose dtypes: fp32 master weights, or bf16 ones that are rounded stochastically; the compute dtype by what
the device does in hardware.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.hardware.probe import Hardware
from paceline.plan.plan import Precision
from paceline.plan.specs.feature_combination import Combination

_DTYPES = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}


def choose_precision(
    requested: str, hardware: Hardware, master: str = "float32", *, bf16_weights: bool = False
) -> Precision:
    """Return the precision for ``auto``, ``no``, ``fp16`` or ``bf16``.

    The config rules refuse what the device cannot do. ``master`` float64 (``model.dtype``) computes
    everything in float64: for comparing strategies, not for training. ``bf16_weights``: they are kept in
    bfloat16 alone, and ``auto`` computes in it.
    """
    if master == "float64":
        return Precision("float64", "float64", "float64", False, "model.dtype: float64")
    word, reason = _auto(hardware) if requested == "auto" else (requested, "requested")
    if requested == "auto" and bf16_weights and hardware.bf16:
        word, reason = "bf16", "auto: the dtype of the weights"
    if requested in ("bf16", "fp16"):
        how = f"{hardware.device_name} computes it in hardware"
        if hardware.device == "cpu" and _DTYPES[requested] not in hardware.products:
            how = f"{hardware.device_name} converts it, and computes products in float32"
        if requested in hardware.emulated:
            how = (
                f"{hardware.device_name} has no instructions for it: correct, but hardly faster than float32"
            )
        reason = f"requested; {how}"
    kept = "bfloat16" if bf16_weights and word == "bf16" else "float32"
    return Precision(_DTYPES[word], kept, "float32", word == "fp16", reason)


def _auto(hardware: Hardware) -> tuple[str, str]:
    """Return (``no``, ``fp16`` or ``bf16``; the reason)."""
    if hardware.device == "cpu":
        more = (
            "; bf16: true is faster on this processor"
            if hardware.bf16 and "bf16" not in hardware.emulated
            else ""
        )
        return "no", f"auto: float32 on a CPU{more}"
    if hardware.bf16:
        return (
            "bf16",
            (
                f"auto: {hardware.device_name} computes bf16 in hardware; it has fp32's range, so no"
                " loss scale is needed"
            ),
        )
    if hardware.fp16:
        return "fp16", f"auto: {hardware.device_name} has no bf16 in hardware; fp16 with a loss scale"
    return "no", f"auto: {hardware.device_name} has neither bf16 nor fp16 in hardware"


def check_full_eval(run: Combination) -> Iterator[Diagnostic]:
    """Refuse ``bf16_full_eval`` and ``fp16_full_eval`` unless training computes in that dtype.

    Evaluation uses the same low-precision weight copies as training.
    """
    for word in run.full_eval:
        key = f"{word}_full_eval"
        if run.precision.compute != _DTYPES[word]:
            yield codes.PREC_FULL_EVAL(
                f"training.{key}",
                f"{key}: true",
                compute=run.precision.compute,
                key=key,
                dtypes=_DTYPES[word],
                word=word,
            )
