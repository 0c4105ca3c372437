"""Throughput and model FLOPs utilisation of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from paceline.runtime.device import matmul_rate


@dataclass(frozen=True)
class Throughput:
    """``matmul_parameters`` are the weights that take part in matrix products; ``peak_flops`` is the measured matrix-product
    rate of one rank's device in the compute dtype (FLOP/s), None where it was not measured.
    """

    matmul_parameters: int
    world_size: int
    peak_flops: float | None

    def tokens_per_second(self, tokens: int, seconds: float) -> float:
        """Real (non-padding) tokens of all ranks a second."""
        return tokens / seconds if seconds > 0 else 0.0

    def mfu(self, tokens: int, seconds: float) -> float | None:
        """6 · matmul_parameters · tokens / (seconds · ranks · peak): the PaLM definition (Chowdhery et al. 2022, appendix B) without its attention term."""
        if not self.peak_flops or seconds <= 0:
            return None
        return 6.0 * self.matmul_parameters * tokens / (seconds * self.world_size * self.peak_flops)


def computed_parameters(shape: Any, adapter: Any, reference: str = "", trained: int = 1) -> int:
    """Weights that count for MFU at 6 FLOP a token: under an adapter a weight has no gradient of its own, which leaves 4 of the 6; a reference
    asked in every step adds the 2 of its forward; of ``trained`` models each counts."""
    whole = int(shape.matmul_parameters) if shape else 0
    sixths = (6 if adapter is None else 4) * trained + (2 if reference in ("live", "adapter") else 0)
    return whole * sixths // 6


def peak_rate(device: torch.device, compute: torch.dtype) -> float:
    """What MFU divides by (FLOP/s): a processor without instructions for ``compute`` is used through float32, so the faster of both counts."""
    rate = matmul_rate(device, compute)
    return rate if device.type == "cuda" or compute == torch.float32 else max(rate, matmul_rate(device, torch.float32))
