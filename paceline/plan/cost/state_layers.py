"""Activations of layers with state (state spaces, linear attention, recurrences) in the peak of a rank.

Their bytes a token come from the class itself (``models.state_bytes``): its mixer in 16 bit by plain tensor
operations, without kernels. Kernels for them keep less. Against what autograd saves in a whole small model
the bytes are right to a factor of ``WITHIN`` (``tests/unit/models/test_listing.py``).
"""

from __future__ import annotations

from paceline.core.units import human_bytes
from paceline.plan.cost.work import StepSpec
from paceline.plan.model.shape import ModelShape

WITHIN = 1.5


def with_state(work: StepSpec, attention: float, mlp: float) -> tuple[float, float]:
    """Return the mean over a rank's layers of (attention with its norm, MLP with its norm), at two bytes per
    element; ``attention`` and ``mlp`` are a layer's without state. What a layer with state saves counts as
    attention.
    """
    share, each = _of_layers(work)
    return attention * (1 - share) + share * each, mlp * (1 - share)


def largest_layer(work: StepSpec, mean: float) -> float:
    """Return what the largest layer saves, at ``work.element`` bytes; ``mean`` is that of all layers."""
    share, each = _of_layers(work)
    return max(mean, each * work.element / 2) if share else mean


def state_summary(shape: ModelShape | None) -> str:
    """Return what the plan says of a model's layers with state; empty if it has none."""
    if shape is None or shape.listing is None:
        return ""
    count, whole = shape.listing.state_layers
    if not count:
        return ""
    return (
        f"{count} of {shape.layers}: {human_bytes(whole / count)} of activations a token and layer in 16 bit,"
        f" as their class saves without kernels of their own, within a factor of {WITHIN:g};"
        " such kernels save less"
    )


def _of_layers(work: StepSpec) -> tuple[float, float]:
    """Return (share of layers with state, bytes in 16 bit that one of them saves for a micro-batch)."""
    listing = work.shape.listing
    count, whole = listing.state_layers if listing is not None else (0, 0.0)
    return (count / work.shape.layers, work.tokens * whole / count / work.tp) if count else (0.0, 0.0)
