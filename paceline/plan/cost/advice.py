"""Advice from a prediction: the size rule, what would fit, bottleneck, learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from paceline.core.units import human_count
from paceline.plan.choose_strategy import chain_from, size_rule
from paceline.plan.cost.search import (
    GIB,
    MARGIN,
    Candidate,
    SearchSpec,
    layout_candidates,
    layouts,
    near_rows,
)
from paceline.plan.strategies.spec import strategy_spec

MORE = (2, 4, 8, 16)  # multiples of the devices that are tried where nothing fits


def escalated(spec: SearchSpec, candidates: Sequence[Candidate]) -> tuple[Candidate | None, list[str]]:
    """Escalate from the size rule's strategy until a layout fits; return (candidate, one line per attempt).

    Each strategy is tried without recomputation, then with full recomputation; the fastest layout that fits
    is taken. The candidate is None if no strategy of the chain fits.
    """
    start, _ = size_rule(spec.shape.num_parameters)
    lines = [f"the guide's rule for {human_count(spec.shape.num_parameters)} parameters: {start}"]
    chain = chain_from(start)
    if spec.cluster.cards == 1:  # nothing to share
        alone = (strategy_spec(candidate.layout.strategy).alone for candidate in candidates)
        lines, chain = ["one process"], tuple(dict.fromkeys(filter(None, alone)))
    for strategy in chain:
        for recompute in ("none", "full"):
            layouts = [c for c in candidates if c.name == strategy and c.work.recompute == recompute]
            if not layouts:
                continue
            fitting = [c for c in layouts if c.safe]
            with_it = f"{strategy}{' with recomputation' if recompute == 'full' else ''}"
            if fitting:
                # The fastest, not the leanest: memory that is left over gains nothing.
                taken = min(fitting, key=lambda c: c.step)
                lines.append(
                    f"{with_it}: {taken.bytes / GIB:.0f} GiB of {taken.card / GIB:.0f} at micro-batch"
                    f" {taken.work.micro_batch}: fits"
                )
                return taken, lines
            lines.append(f"{with_it}: {min(layouts, key=lambda c: c.bytes).binding}")
    return None, [*lines, "none of them fits"]


def advice(spec: SearchSpec, candidates: Sequence[Candidate], chosen: Candidate | None) -> list[str]:
    """Return advice in sentences: bottleneck, learning rate; or what would make it fit."""
    lines = [*_positions(spec), *_experts(spec), *_host(spec, candidates if chosen is None else [chosen])]
    if chosen is None:
        return [*_what_would_fit(spec, candidates), *lines]
    if spec.rows % spec.cluster.cards:
        near = " or ".join(map(str, near_rows(spec)))
        lines.append(
            f"{spec.rows} rows per step are not a multiple of {spec.cluster.cards} devices:"
            f" strategies that give every device its own rows are excluded; {near} rows would"
            " include them"
        )
    return [*lines, _bottleneck(chosen), *_learning_rate(chosen)]


def _positions(spec: SearchSpec) -> list[str]:
    known = spec.shape.max_position_embeddings
    if not 0 < known < spec.seq_len:
        return []
    return [
        f"rows of {spec.seq_len:,} tokens are longer than the model's {known:,} positions"
        " (max_position_embeddings): it needs RoPE scaling for them"
    ]


def _experts(spec: SearchSpec) -> list[str]:
    if not spec.shape.experts:
        return []
    return [
        "mixtures of experts are published with expert parallelism, which Paceline lacks: tp_size spreads"
        " whole experts over ranks of a node that all see every token; else each card gathers all experts"
    ]


def _host(spec: SearchSpec, candidates: Sequence[Candidate]) -> list[str]:
    machine = spec.cluster.machine
    offloads = any(c.work.offload != "none" for c in candidates)
    if machine.host_memory or not machine.assumed_host or not offloads:
        return []
    return [
        f"{machine.assumed_host / 1e9:,.0f} GB of host memory a node are assumed for offload: name an"
        " instance, or set host_memory_gb in a YAML for --hardware"
    ]


def _what_would_fit(spec: SearchSpec, candidates: Sequence[Candidate]) -> list[str]:
    nearest = min((c for c in candidates if not c.impossible), key=lambda c: c.bytes, default=None)
    if nearest is None:
        return ["nothing can run here: see the reasons in the table"]
    lines = [f"nothing fits with the margin; the nearest is {nearest.strategy} with {nearest.binding}"]
    lines.append(
        f"what would make it fit: {_more_devices(spec)}, or a"
        f" device with {nearest.bytes / MARGIN / GIB:.0f} GiB free (this one: {nearest.card / GIB:.0f})"
    )
    if nearest.peak.logits > 0.2 * nearest.peak.total:
        lines.append(
            "logits are the limit: use shorter sequences, or tensor parallelism with a parallel loss"
        )
    if nearest.work.adapter is None:
        lines += in_bf16(spec, nearest)
    # An adapter saves states and what is gathered; activations stay
    peak = nearest.peak
    # Where activations are most of the peak, an adapter changes little.
    moving = peak.attention + peak.mlp + peak.checkpoints + peak.images
    if nearest.work.adapter is None and moving < peak.total / 2:
        lines.append(
            "or LoRA (lora: {r: 16}): only the adapter has gradients and optimizer states; with"
            " quantization_bit: 4 the weights need a quarter"
        )
    return lines


def _more_devices(spec: SearchSpec) -> str:
    """Return the smallest multiple of the devices on which a layout fits, with that layout."""
    for more in MORE:
        cards = spec.cluster.cards * more
        # Rounded up, so that each device gets rows; the text says so where that adds some.
        rows = -(-spec.rows // cards) * cards
        larger = replace(spec, cluster=replace(spec.cluster, cards=cards), rows=rows)
        fitting = [c for layout in layouts() for c in layout_candidates(layout, larger) if c.safe]
        if fitting:
            best = max(fitting, key=lambda c: c.work.step_tokens / c.step)
            rowed = f" with {rows} rows a step" if rows != spec.rows else ""
            return (
                f"{more} × as many devices, where {best.strategy} needs {best.bytes / GIB:.0f} GiB of"
                f" {best.card / GIB:.0f}{rowed}"
            )
    return f"not up to {MORE[-1]} × as many devices"


def in_bf16(spec: SearchSpec, nearest: Candidate) -> list[str]:
    """Return a layout that fits with weights in bfloat16 alone, if there is one."""
    states = spec.states.pure_bf16()
    if states is None or nearest.work.element != 2:
        return []
    alone = replace(spec, states=states)
    fitting = [c for layout in layouts() for c in layout_candidates(layout, alone) if c.safe]
    if not fitting:
        return []
    best = max(fitting, key=lambda c: c.work.step_tokens / c.step)
    return [
        f"or training.pure_bf16: true: weights and moments in bfloat16 alone; {best.strategy} then needs"
        f" {best.bytes / GIB:.0f} GiB of {best.card / GIB:.0f}"
    ]


SLIGHT = 0.02  # a smaller share of the step time is not worth a remedy
OTHERWISE = "a larger batch"
REMEDIES = {
    "data-parallel communication": "more accumulation, or sharding inside a node (fsdp hybrid)",
    "tensor-parallel communication": "a smaller tp_size, or a larger micro-batch",
    "context-parallel communication": "a smaller cp_size, if rows and memory allow",
    "the pipeline's bubble": "more micro-batches, or pp_schedule: interleaved",
    "offload to host memory": "more devices, or recomputation instead",
    "generation": (
        "more answers at a time (per_device_train_batch_size), shorter answers"
        " (max_completion_length), or rollout.server"
    ),
    "arithmetic": "torch_compile, or a larger micro-batch",
}


def _bottleneck(chosen: Candidate) -> str:
    speed = chosen.speed
    parts = {
        "arithmetic": speed.compute,
        "tensor-parallel communication": speed.tensor_parallel,
        "context-parallel communication": speed.context_parallel,
        "data-parallel communication": speed.data_parallel,
        "the pipeline's bubble": speed.bubble,
        "communication between stages": speed.pipeline,
        "the optimizer step": speed.optimizer,
        "offload to host memory": speed.offload,
        "the other models": speed.others,
        "generation": speed.generation,
    }
    first, second = sorted(parts, key=lambda name: -parts[name])[:2]
    share = {name: parts[name] / speed.step for name in (first, second)}
    if share[second] < SLIGHT:
        return (
            f"most time is spent on {first} ({share[first]:.0%}), little on anything else:"
            f" {REMEDIES.get(first, OTHERWISE)}"
        )
    # Arithmetic in the first place is what a step is for: the remedy is for what comes next.
    cure = REMEDIES.get(second if first == "arithmetic" else first, OTHERWISE)
    return f"most time is spent on {first} ({share[first]:.0%}), then {second} ({share[second]:.0%}): {cure}"


def _learning_rate(chosen: Candidate) -> list[str]:
    if chosen.work.dp == 1:
        return []
    dp = chosen.work.dp
    return [
        f"learning rate compared with one device: × {math.sqrt(dp):.3g} (square root, the guide's"
        f" rule, for Adam) or × {dp} (linear, for SGD) if the batch grew {dp} ×"
    ]
