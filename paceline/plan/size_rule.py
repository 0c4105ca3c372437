"""``auto``'s rule for a model's size, and what it goes on to where that does not fit: said once, for the plan of a config and for a model's page."""

from __future__ import annotations

from paceline.plan.strategies.deepspeed.spec import ZERO2, ZERO3
from paceline.plan.strategies.fsdp.spec import FSDP
from paceline.plan.strategies.replicated import DDP

#: From the guide's strategies to the one that needs least: each shares out more than the one before, the last starts with no whole model on a card.
CHAIN = (DDP.name, ZERO2.name, ZERO3.name, FSDP.name)
SMALL, MEDIUM = 1_000_000_000, 7_000_000_000


def size_rule(num_parameters: int) -> tuple[str, str]:
    """(strategy, why): the guide's: below 1B parameters DDP, from 1B to 7B ZeRO-2, above ZeRO-3."""
    if num_parameters < SMALL:
        return DDP.name, "below 1B: replicate the model, average the gradients"
    if num_parameters <= MEDIUM:
        return ZERO2.name, "from 1B to 7B: ZeRO-2"
    return ZERO3.name, "above 7B: ZeRO-3"


def chain_from(strategy: str) -> tuple[str, ...]:
    """``strategy`` and what comes after it."""
    return CHAIN[CHAIN.index(strategy) :]
