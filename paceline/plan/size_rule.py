"""``auto``'s rule by model size, and its chain of fallback strategies."""

from __future__ import annotations

from paceline.plan.strategies.deepspeed.spec import ZERO2, ZERO3
from paceline.plan.strategies.fsdp.spec import FSDP
from paceline.plan.strategies.replicated import DDP

#: Each strategy shards more than the one before; the last never holds the whole model on a card at startup.
CHAIN = (DDP.name, ZERO2.name, ZERO3.name, FSDP.name)
SMALL, MEDIUM = 1_000_000_000, 7_000_000_000


def size_rule(num_parameters: int) -> tuple[str, str]:
    """Return (strategy, reason): DDP below 1B parameters, ZeRO-2 from 1B to 7B, ZeRO-3 above."""
    if num_parameters < SMALL:
        return DDP.name, "below 1B: replicate the model and average the gradients"
    if num_parameters <= MEDIUM:
        return ZERO2.name, "from 1B to 7B: ZeRO-2"
    return ZERO3.name, "above 7B: ZeRO-3"


def chain_from(strategy: str) -> tuple[str, ...]:
    """Return ``strategy`` and its fallbacks."""
    return CHAIN[CHAIN.index(strategy) :]
