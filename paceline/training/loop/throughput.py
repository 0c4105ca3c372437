"""Throughput and model FLOPs utilization of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.algorithms.algorithm import Algorithm
from paceline.plan.hardware.device_catalogue import data_sheet_peak
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.plan import Plan
from paceline.runtime.device.device import device_name, matmul_rate


@dataclass(frozen=True)
class PeakFlops:
    """Peak FLOP/s of one rank's device, the divisor of utilization.

    ``data_sheet``: the number is the data sheet's, as in the planner; otherwise it was timed here on a matrix
    product.
    """

    flops: float
    data_sheet: bool

    @staticmethod
    def of(device: torch.device, compute: str) -> PeakFlops:
        """Return the peak of ``device`` in the dtype named ``compute``; timed if no data sheet is known."""
        accelerated = is_accelerator(device.type)
        if accelerated and (peak := data_sheet_peak(device_name(device), compute)) is not None:
            return PeakFlops(peak, True)
        # a CPU without instructions for ``compute`` falls back to float32, so the faster of both counts
        # A set: for float32 itself one product is timed, not two.
        dtypes = {getattr(torch, compute)} | (set() if accelerated else {torch.float32})
        return PeakFlops(max(matmul_rate(device, dtype) for dtype in dtypes), False)


@dataclass(frozen=True)
class Throughput:
    """``matmul_parameters`` are the weights used in matrix products; ``peak`` None: utilization is not
    computed.
    """

    matmul_parameters: int
    world_size: int
    peak: PeakFlops | None

    @staticmethod
    def of(plan: Plan, algorithm: Algorithm, device: torch.device) -> Throughput:
        """Count the weights for MFU at 6 FLOP per token, of each trained model.

        With an adapter, frozen weights need no weight gradient, which leaves 4 of the 6. A reference
        that runs in every step adds the 2 of its forward, and so does each forward over a window before it.
        """
        peak = PeakFlops.of(device, plan.precision.compute)
        if plan.shape is None:
            return Throughput(0, plan.world_size, None)
        means = algorithm.window_means
        # A bool counts as 0 or 1: a live reference is one more forward a step.
        forwards = (plan.reference in ("live", "adapter")) + (0 if means is None else len(means.roles))
        # 2 FLOP a weight and token in the forward, 4 in the backward (inputs and weights), after Kaplan et
        # al. 2020.
        sixths = (6 if plan.adapter is None else 4) * len(algorithm.trains) + 2 * forwards
        return Throughput(plan.shape.matmul_parameters * sixths // 6, plan.world_size, peak)

    def tokens_per_second(self, tokens: int, seconds: float) -> float:
        """Return real (non-padding) tokens per second, over all ranks."""
        return tokens / seconds if seconds > 0 else 0.0

    def utilisation(self, tokens: int, seconds: float) -> dict[str, float | None]:
        """Return the fields of ``events.Step``: 6 · matmul_parameters · tokens / (seconds · ranks · peak).

        With a data sheet's peak this is the PaLM definition of MFU (Chowdhery et al. 2022, appendix B)
        without its attention term; with a timed product it is the fraction of that product's rate, not MFU.
        """
        shares: dict[str, float | None] = {"mfu": None, "of_product": None}
        if self.peak is None or seconds <= 0:
            return shares
        # Weights are stored in sixths above, so that this formula holds for every algorithm.
        share = 6.0 * self.matmul_parameters * tokens / (seconds * self.world_size * self.peak.flops)
        return shares | {"mfu" if self.peak.data_sheet else "of_product": share}
