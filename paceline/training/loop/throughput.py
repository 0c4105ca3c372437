"""Throughput and model FLOPs utilisation of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.plan.hardware.device_catalogue import data_sheet_peak
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec
from paceline.runtime.device.device import device_name, matmul_rate


@dataclass(frozen=True)
class PeakFlops:
    """Peak FLOP/s of one rank's device, the divisor of utilisation.

    ``data_sheet``: it is the data sheet's number, as in the planner; otherwise that of a matrix product timed
    here.
    """

    flops: float
    data_sheet: bool

    @staticmethod
    def of(device: torch.device, compute: str) -> PeakFlops:
        """Return the peak of ``device`` in the dtype named ``compute``; timed if no data sheet is known."""
        known = data_sheet_peak(device_name(device), compute) if is_accelerator(device.type) else None
        return (
            PeakFlops(timed_rate(device, getattr(torch, compute)), False)
            if known is None
            else PeakFlops(known, True)
        )


@dataclass(frozen=True)
class Throughput:
    """``matmul_parameters`` are the weights used in matrix products; ``peak`` None: utilisation is not
    computed.
    """

    matmul_parameters: int
    world_size: int
    peak: PeakFlops | None

    def tokens_per_second(self, tokens: int, seconds: float) -> float:
        """Return real (non-padding) tokens per second, over all ranks."""
        return tokens / seconds if seconds > 0 else 0.0

    def utilisation(self, tokens: int, seconds: float) -> dict[str, float | None]:
        """Return the fields of ``events.Step``: 6 · matmul_parameters · tokens / (seconds · ranks · peak).

        With a data sheet's peak this is the PaLM definition of MFU (Chowdhery et al. 2022, appendix B)
        without its attention term; with a timed product it is the fraction of that product's rate, not MFU.
        """
        if self.peak is None or seconds <= 0:
            return {"mfu": None, "of_product": None}
        share = 6.0 * self.matmul_parameters * tokens / (seconds * self.world_size * self.peak.flops)
        return (
            {"mfu": share, "of_product": None} if self.peak.data_sheet else {"mfu": None, "of_product": share}
        )


def computed_parameters(
    shape: ModelShape | None,
    adapter: AdapterSpec | None,
    reference: str = "",
    trained: int = 1,
    forwards: int = 0,
) -> int:
    """Return the weights that count for MFU at 6 FLOP per token.

    Under an adapter frozen weights have no gradient of their own, which leaves 4 of the 6. A reference that
    runs in every step adds the 2 of its forward, and so does each of the ``forwards`` over a window before
    it. Each of the ``trained`` models counts.
    """
    whole = shape.matmul_parameters if shape else 0
    sixths = (6 if adapter is None else 4) * trained + 2 * (forwards + (reference in ("live", "adapter")))
    return whole * sixths // 6


def timed_rate(device: torch.device, compute: torch.dtype) -> float:
    """Return the FLOP/s of matrix products timed here.

    A CPU without instructions for ``compute`` falls back to float32, so the faster of both counts.
    """
    rate = matmul_rate(device, compute)
    return (
        rate
        if is_accelerator(device.type) or compute == torch.float32
        else max(rate, matmul_rate(device, torch.float32))
    )
