"""Throughput and model FLOPs utilisation of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.plan.hardware.catalogue import data_sheet_peak
from paceline.plan.model.shape import ModelShape
from paceline.plan.parts import AdapterSpec
from paceline.runtime.device import device_name, matmul_rate


@dataclass(frozen=True)
class Peak:
    """What utilisation divides by, FLOP/s of one rank's device: the data sheet's number that the planner uses too, else of a product timed here."""

    flops: float
    data_sheet: bool

    @staticmethod
    def of(device: torch.device, compute: str) -> Peak:
        """Of ``device`` in the dtype called ``compute``; products are timed only where no data sheet is known."""
        known = data_sheet_peak(device_name(device), compute) if device.type == "cuda" else None
        return Peak(timed_rate(device, getattr(torch, compute)), False) if known is None else Peak(known, True)


@dataclass(frozen=True)
class Throughput:
    """``matmul_parameters`` are the weights that take part in matrix products; ``peak`` is None where nothing is to be divided by it."""

    matmul_parameters: int
    world_size: int
    peak: Peak | None

    def tokens_per_second(self, tokens: int, seconds: float) -> float:
        """Real (non-padding) tokens of all ranks a second."""
        return tokens / seconds if seconds > 0 else 0.0

    def utilisation(self, tokens: int, seconds: float) -> dict[str, float | None]:
        """Fields of ``events.Step``: 6 · matmul_parameters · tokens / (seconds · ranks · peak).

        Of a data sheet's peak this is the PaLM definition of MFU (Chowdhery et al. 2022, appendix B) without its attention term; of a timed product
        it is a share of that, and no MFU.
        """
        if self.peak is None or seconds <= 0:
            return {"mfu": None, "of_product": None}
        share = 6.0 * self.matmul_parameters * tokens / (seconds * self.world_size * self.peak.flops)
        return {"mfu": share, "of_product": None} if self.peak.data_sheet else {"mfu": None, "of_product": share}


def computed_parameters(
    shape: ModelShape | None, adapter: AdapterSpec | None, reference: str = "", trained: int = 1, forwards: int = 0
) -> int:
    """Weights that count for MFU at 6 FLOP a token: under an adapter a weight has no gradient of its own, which leaves 4 of the 6; a reference
    asked in every step adds the 2 of its forward, and so does each of the ``forwards`` over a window before it; of ``trained`` models each counts."""
    whole = shape.matmul_parameters if shape else 0
    sixths = (6 if adapter is None else 4) * trained + 2 * (forwards + (reference in ("live", "adapter")))
    return whole * sixths // 6


def timed_rate(device: torch.device, compute: torch.dtype) -> float:
    """FLOP/s of products timed here: a processor without instructions for ``compute`` is used through float32, so the faster of both counts."""
    rate = matmul_rate(device, compute)
    return rate if device.type == "cuda" or compute == torch.float32 else max(rate, matmul_rate(device, torch.float32))
