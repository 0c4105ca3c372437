"""Which dtypes: fp32 master weights always; the compute dtype by what the device does in hardware."""

from __future__ import annotations

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan.hardware import Hardware
from paceline.plan.plan import Precision

KEY = "training.mixed_precision"


def choose_precision(asked: str, hardware: Hardware) -> Precision:
    """The precision for ``auto``, ``no``, ``fp16`` or ``bf16``. Raises ConfigError when the device cannot do what was asked."""
    if asked == "auto":
        return _auto(hardware)
    if asked == "no":
        return _precision("float32", "asked for")
    ability = {"bf16": hardware.bf16, "fp16": hardware.fp16}.get(asked)
    if ability is None:
        raise ConfigError(Diagnostic("plan.precision_unknown", f"no precision is called '{asked}'", KEY, asked, "auto, no, fp16 or bf16"))
    if not ability:
        raise ConfigError(
            Diagnostic(
                f"plan.{asked}_hardware",
                f"this device does not compute {asked} in hardware",
                KEY,
                f"{asked} on {hardware.device_name}",
                f"mixed_precision: {_alternative(asked, hardware)}",
            )
        )
    how = f"{hardware.device_name} computes it in hardware"
    if asked in hardware.emulated:
        how = f"{hardware.device_name} has no instructions for it: right, but hardly faster than float32"
    return _precision("bfloat16" if asked == "bf16" else "float16", f"asked for; {how}")


def _auto(hardware: Hardware) -> Precision:
    if hardware.device == "cpu":
        more = "; bf16: true is faster on this processor" if hardware.bf16 and "bf16" not in hardware.emulated else ""
        return _precision("float32", f"auto: float32 on a CPU{more}")
    if hardware.bf16:
        return _precision("bfloat16", f"auto: {hardware.device_name} computes bf16 in hardware; fp32's range, so no loss scale")
    if hardware.fp16:
        return _precision("float16", f"auto: {hardware.device_name} has no bf16 in hardware, fp16 with a loss scale")
    return _precision("float32", f"auto: {hardware.device_name} has neither bf16 nor fp16 in hardware")


def _precision(compute: str, reason: str) -> Precision:
    return Precision(compute, "float32", "float32", compute == "float16", reason)


def _alternative(asked: str, hardware: Hardware) -> str:
    if asked == "bf16" and hardware.fp16:
        return "fp16, or auto"
    if asked == "fp16" and hardware.bf16:
        return "bf16, or auto"
    return "auto"
