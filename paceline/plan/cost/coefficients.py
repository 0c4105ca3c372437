"""The calibrated coefficients: fitted by ``research/planner_accuracy.py`` on published measurements, shipped as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

#: The rows that fix what a system does in its own way; "default" is everything else, and what Paceline itself is predicted with.
DEFAULT = "default"


@dataclass(frozen=True)
class MemoryCoefficients:
    """Of ``cost.peak``: bytes an element of what a layer keeps for its backward, and shares of what else lies on a rank."""

    norm: float  # input and output of a norm
    query: float
    keys: float  # keys and values
    gated: float  # tensors of a gated feed-forward's inner width
    compiled: float  # what torch.compile leaves of a layer's activations
    frozen_attention: float  # what frozen weights below an adapter leave of them
    frozen_mlp: float
    logits: float  # bytes a logit
    fused_logits: float  # GiB
    gathered: float  # sequence pieces gathered from the tensor-parallel group, a layer
    gathered_ends: float  # and at the model's ends
    gathered_pipeline: float  # and where there is a pipeline
    root_unit: float  # share of the ends' weights that ZeRO-3 keeps gathered
    bucket: float  # numbers of ZeRO-2's bucket
    replica: float  # bytes a parameter of DDP's
    fragments: float  # share of what moves
    states_slack: float  # share of weights and gradients
    overhead: float  # GiB of the context
    communicators: float  # GiB
    checkpoint: float  # inputs of a recomputed layer that are kept
    segments: float  # share of the activations of micro-batches that overlap
    safety: float  # share of all


@dataclass(frozen=True)
class SpeedCoefficients:
    """Of ``cost.speed`` and ``cost.links``: efficiencies are shares of a device's or link's own, latencies milliseconds."""

    kernel: float  # of the largest products
    width: float  # at which width of a product half of it is left
    rows: float  # and at how many rows
    attention: float
    elementwise: float  # bytes moved an element and pass
    compiled_time: float
    launch: float  # of a layer's kernels
    loss_moves: float  # bytes a logit
    low_precision: float  # fp8 over bf16
    four_bits: float  # fp4 over fp8
    selective_passes: float  # of a forward, computed again
    tensor_exposed: float  # share of the tensor-parallel group's exchange beside compute
    tensor_hidden: float  # and instead of it
    tensor_pipeline: float  # a rank of the group, in a pipeline
    tensor_nodes: float  # and a node more
    link_inside: float
    link_outside: float
    link_fall: float  # power by which a node's links fall with the number of nodes
    hop: float  # of a ring's step between nodes, over NCCL's
    overlap: float  # share of compute that hides communication
    zero_overlap: float  # and under ZeRO-1 and ZeRO-2
    overlap_slow: float  # share of hidden communication that slows compute
    never_hidden: float  # share of communication
    reduce_bytes: float  # a gradient
    send: float
    optimizer_moves: float  # bytes a parameter
    step_fixed: float  # seconds


@dataclass(frozen=True)
class _Tables:
    """By system; a system beside the default says only what is its own. ``spread``: measured over predicted, by kind."""

    memory: Mapping[str, Mapping[str, float]]
    speed: Mapping[str, Mapping[str, float]]
    spread: Mapping[str, tuple[float, float]]


@cache
def _tables() -> _Tables:
    text = resources.files("paceline.plan").joinpath("data/coefficients.json").read_text(encoding="utf-8")
    data = json.loads(text)
    return _Tables(data["memory"], data["speed"], {kind: (low, high) for kind, (low, high) in data["spread"].items()})


@cache
def memory_coefficients(system: str = DEFAULT) -> MemoryCoefficients:
    """For ``cost.peak``."""
    sets = _tables().memory
    return MemoryCoefficients(**{**sets[DEFAULT], **sets.get(system, {})})


@cache
def speed_coefficients(system: str = DEFAULT) -> SpeedCoefficients:
    """For ``cost.speed``."""
    sets = _tables().speed
    return SpeedCoefficients(**{**sets[DEFAULT], **sets.get(system, {})})


def spread(kind: str) -> tuple[float, float]:
    """Measured over predicted at the 10th and at the 90th percentile of the cross-validated rows: ``memory``, ``speed`` or ``adapter``."""
    return _tables().spread[kind]
