"""Peaks of accelerators from their data sheets."""

from __future__ import annotations

# Dense tensor-core peaks with fp32 accumulation, FLOP/s (data sheets), matched in order by name.
PEAK_BF16_FLOPS: tuple[tuple[str, float], ...] = (
    ("GB300", 2.5e15),
    ("B300", 2.25e15),
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("GH200", 989e12),
    ("H200", 989e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("H20", 148e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A30", 165e12),
    ("A40", 149.7e12),
    ("A6000", 154.8e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("RTX 5090", 209.5e12),
    ("RTX 4090", 165.2e12),
    ("RTX 3090", 71e12),
)
PEAK_FP16_ONLY_FLOPS: tuple[tuple[str, float], ...] = (
    ("V100", 125e12),
    ("T4", 65e12),
    ("2080", 53.8e12),
    ("TITAN RTX", 65.2e12),
)


def peak_flops(name: str) -> dict[str, float] | None:
    """Return the dense peak in FLOP/s by dtype name, from the device's data sheet; None if unknown."""
    for known, value in PEAK_BF16_FLOPS:
        if known.lower() in name.lower():
            return {"bfloat16": value, "float16": value}
    for known, value in PEAK_FP16_ONLY_FLOPS:
        if known.lower() in name.lower():
            return {"float16": value}
    return None
