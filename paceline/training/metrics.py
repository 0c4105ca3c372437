"""Throughput and model FLOPs utilisation of a step."""

from __future__ import annotations

from dataclasses import dataclass


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
