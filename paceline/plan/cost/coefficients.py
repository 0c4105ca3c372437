"""Calibrated coefficients, shipped as JSON: ``dev/research/planner_accuracy.py`` fits them to public runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

from paceline.plan.plan_json import shipped_table

#: The coefficients used for Paceline itself; other systems override the ones in which they differ.
DEFAULT = "default"


@dataclass(frozen=True)
class MemoryCoefficients:
    """Coefficients of ``cost.memory.peak``: bytes per element of saved activations, and shares of other
    terms."""

    norm: float  # bytes per hidden element for a norm's input and output
    query: float  # bytes per element of the query width
    keys: float  # bytes per element of the key (and value) width
    gated: float  # number of saved tensors of a gated MLP's inner width
    compiled: float  # share of a layer's activations left under torch.compile
    logits: float  # bytes per logit
    fused_logits: float  # GiB, with a fused loss
    gathered: float  # bytes per hidden element and layer of sequence shards gathered under tp
    gathered_ends: float  # the same at embedding and head
    gathered_pipeline: float  # the same per layer in a pipeline
    root_unit: float  # share of embedding and head weights that ZeRO-3 keeps gathered
    bucket: float  # elements of ZeRO-2's bucket
    replica: float  # bytes per parameter that DDP adds
    fragments: float  # share of activations, logits and gathered tensors
    states_slack: float  # share of weights and gradients added to fragmentation
    overhead: float  # GiB of the CUDA context
    communicators: float  # GiB
    checkpoint: float  # hidden-sized tensors saved per recomputed layer
    segments: float  # share of the activations, where micro-batches of a pipeline overlap
    safety: float  # share of the whole peak


@dataclass(frozen=True)
class SpeedCoefficients:
    """Coefficients of ``cost.step_time``; efficiencies are relative to the peak."""

    kernel: float  # efficiency of the largest matmuls
    width: float  # matmul width at which that efficiency halves
    rows: float  # number of rows (tokens) at which it halves
    attention: float  # efficiency of attention
    elementwise: float  # bytes moved per element and pass
    compiled_time: float  # share of elementwise and launch time left under torch.compile
    launch: float  # milliseconds to launch a layer's kernels, forward and backward
    loss_moves: float  # bytes moved per logit
    low_precision: float  # speed of fp8 relative to bf16
    four_bits: float  # speed of fp4 relative to fp8
    selective_passes: float  # forward passes repeated by selective recomputation
    tensor_exposed: float  # share of tensor-parallel communication added to compute
    tensor_pipeline: float  # milliseconds per rank of the tensor-parallel group, in a pipeline
    tensor_nodes: float  # factor added per further node of the group
    link_inside: float  # share of the bandwidth inside a node that is reached
    link_outside: float  # and between nodes
    link_fall: float  # inter-node bandwidth falls with this power of the number of nodes
    hop: float  # latency of a ring step between nodes, relative to NCCL's
    message: float  # MiB of gradients (or of the weights they update) in a collective
    overlap: float  # share of compute time that hides communication
    zero_overlap: float  # factor on it under ZeRO-1 and ZeRO-2
    overlap_slow: float  # slowdown of compute, as a share of hidden communication
    never_hidden: float  # share of communication that is always exposed
    send: float  # milliseconds per send between stages
    optimizer_moves: float  # bytes moved per parameter
    step_fixed: float  # seconds per step


@dataclass(frozen=True)
class _Tables:
    """Coefficients by system (differences from the default), and ratios of measured to predicted values."""

    memory: Mapping[str, Mapping[str, float]]
    speed: Mapping[str, Mapping[str, float]]
    spread: Mapping[str, tuple[float, float]]


# Read once a process, and not at import: ``paceline --help`` needs no table.
_tables = cache(partial(shipped_table, "coefficients", _Tables))


@cache
def memory_coefficients(system: str = DEFAULT) -> MemoryCoefficients:
    """Return the coefficients of ``cost.memory.peak`` for a ``system``, which lists its differences."""
    sets = _tables().memory
    # A system lists what differs, so that a new coefficient needs one value.
    return MemoryCoefficients(**{**sets[DEFAULT], **sets.get(system, {})})


@cache
def speed_coefficients(system: str = DEFAULT) -> SpeedCoefficients:
    """Return the coefficients of ``cost.step_time`` for a ``system``, which lists its differences."""
    sets = _tables().speed
    return SpeedCoefficients(**{**sets[DEFAULT], **sets.get(system, {})})


def spread(kind: str) -> tuple[float, float]:
    """Return measured / predicted between which 80 % of the rows of publishers that were left out lie.

    ``kind``: ``memory``, ``speed`` or ``low_precision`` (the speed of products in 8 or 4 bits).
    """
    return _tables().spread[kind]
