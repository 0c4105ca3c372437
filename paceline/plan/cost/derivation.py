"""How a forecast comes about: each term of memory and time with its formula and its numbers."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.units import aligned
from paceline.plan.cost.coefficients import memory_coefficients
from paceline.plan.cost.memory.peak import gradients_begin_anew, head_kept, in_flight, layer_bytes
from paceline.plan.cost.report import TIME, short_mesh
from paceline.plan.cost.search import GIB, Candidate
from paceline.plan.cost.step_time import step_flops, token_flops


@dataclass(frozen=True)
class Term:
    """One term. ``numbers``: the formula with its numbers, in the term's unit; empty if there is no short
    one."""

    name: str
    value: float
    formula: str
    numbers: str = ""


def memory_terms(c: Candidate) -> list[Term]:
    """Return the terms of the fullest rank's memory, in GiB, without what measured runs correct."""
    work, peak = c.work, c.peak
    stage = work.stages[c.place]
    states = [
        ("parameters", peak.parameters, work.storage.weight, work.zero == 3),
        ("gradients", peak.gradients, work.storage.gradient, work.zero >= 2),
        ("optimizer", peak.optimizer, work.storage.optimizer, work.zero >= 1),
    ]
    terms = [_state(c, *state) for state in states]
    layers = max(0, stage.layers - work.trained_part.first_layer)
    slots = in_flight(work, c.place)
    attention, mlp = (each / work.tokens for each in layer_bytes(work, memory_coefficients(work.system)))
    flying = f" × {slots:g} micro-batches in flight" if slots != 1 else ""
    for name, value, each in (("attention", peak.attention, attention), ("mlp", peak.mlp, mlp)):
        if value:
            numbers = f"{each:.0f} × {work.tokens} × {layers * slots:g} / 2^30"
            formula = f"bytes a token and layer saves × tokens × layers{flying}"
            whole = each * work.tokens * layers * slots
            # Within half a per cent: the table shows three digits. Otherwise numbers that do not add up
            # would be printed.
            exact = abs(whole - value) <= 0.005 * value
            if value < whole and not exact:
                formula = "of the layer with which the backward ends: all gradients exist then"
            elif not exact:
                formula += ", and gradients of the layer that the backward is in"
            terms.append(Term(name, value / GIB, formula, numbers if exact else ""))
    if peak.checkpoints:
        formula = f"a layer's input × layers{flying}, and the one layer that is computed again"
        terms.append(Term("checkpoints", peak.checkpoints / GIB, formula))
    if peak.logits:
        terms.append(_logits(c))
    if peak.gathered:
        terms.append(Term("gathered", peak.gathered / GIB, _gathered(c)))
    if peak.images:
        terms.append(Term("images", peak.images / GIB, "pictures × (pixels + what the tower saves)"))
    if peak.others:
        terms.append(
            Term("others", peak.others / GIB, "weights (and states) of the algorithm's other models")
        )
    safe = "shares of what moves and of weights, lost between the allocator's blocks; fitted"
    terms.append(Term("fragments", peak.fragments / GIB, safe))
    terms.append(Term("overhead", peak.overhead / GIB, "device context and communicators; fitted"))
    return terms


def _state(c: Candidate, name: str, value: float, each: float, sharded: bool) -> Term:
    work = c.work
    count = work.stage_parameters(work.stages[c.place])
    ranks = work.sharers if sharded else 1
    offloaded = work.offload == "all" or (name == "optimizer" and work.offload == "optimizer")
    if offloaded and not value:
        return Term(name, 0.0, "in host memory")
    divided = f" / {ranks} ranks" if ranks > 1 else ""
    formula = f"{each:g} bytes a parameter{divided}"
    expected = count * each / ranks
    if name == "gradients" and value < 0.5 * expected and gradients_begin_anew(work):
        met = "the head's; a layer's come as its activations go, and there is one micro-batch"
        return Term(name, value / GIB, met)
    if work.adapter is not None or abs(expected - value) > 0.005 * value:
        adapter = "frozen weights in their own dtype, 16 or 18 bytes of a trained one"
        return Term(name, value / GIB, adapter if work.adapter else f"counted tensor by tensor: {formula}")
    return Term(name, value / GIB, formula, f"{each:g} × {count:.0f} / {ranks} / 2^30")


def _logits(c: Candidate) -> Term:
    work, value = c.work, c.peak.logits / GIB
    if work.kernels == "eager" or work.fused_loss:
        return Term("logits", value, "bytes a logit × tokens × vocabulary")
    size = work.shape.vocab * work.shape.hidden_size / work.tp
    gradient = 4 if work.adapter is None or work.adapter.full_modules else 0
    moved = work.element * work.tokens * work.shape.hidden_size
    chunks = c.peak.logits - head_kept(work)
    formula = "the head's fp32 gradient + its input's gradient" + (" + a chunk of logits" if chunks else "")
    return Term("logits", value, formula, f"( {gradient} × {size:.0f} + {moved:.0f} + {chunks:.0f} ) / 2^30")


def _gathered(c: Candidate) -> str:
    work = c.work
    if work.zero == 3 and work.pp > 1:
        return "all weights and gradients of the stage, which torch's pipelines keep for a window"
    if work.zero == 3 and work.gathering.keeps_all:
        return "all 16-bit weights, which stay for the window"
    if work.zero == 3:
        return "embedding and head, and a layer, or in the backward two and the gradients of one"
    if work.zero == 2:
        return "two buckets of gradients"
    return "DDP's bucket" if work.tp == 1 else "sequence shards gathered under tensor parallelism"


def time_terms(c: Candidate) -> list[Term]:
    """Return the terms of a step's time, in seconds, without what measured runs correct."""
    work, speed, machine = c.work, c.speed, c.work.machine
    hardware = step_flops(work) / work.world
    passes = 4 if work.recompute == "full" else 3
    # FLOP/s that this forecast implies; ``step_flops`` counts 3 passes, full recomputation a fourth.
    rate = hardware * passes / 3 / max(speed.compute, 1e-12)
    formulas = (  # in the order of TIME
        (
            f"{token_flops(work) / 1e9:.3g} GFLOP × {work.step_tokens} tokens / {work.world} devices"
            f"{' × 4/3 (again)' if passes == 4 else ''} at {rate / 1e12:.0f} of"
            f" {machine.flops / 1e12:.0f} TFLOP/s"
        ),
        "8 gathers and scatters a layer (10 with recomputation), less what compute hides",
        "heads exchanged for tokens, all to all, in every layer",
        (
            "two gathers and a scatter a layer and micro-batch, less what compute hides"
            if work.zero == 3
            else "gradients summed over the ranks, less what the backward hides"
        ),
        "activations and gradients sent between stages",
        f"{work.pp - 1} of {work.pp - 1 + work.accumulation} slots, in which a stage waits",
        "weights, gradients and moments read and written at memory bandwidth",
        f"states over the host's link ({machine.host / 1e9:.0f} GB/s), and Adam on the host",
        "forwards of frozen models, steps of further trained ones",
        "each token reads the weights and the cache",
    )
    terms = [
        Term(name, float(getattr(speed, name)), formula) for name, formula in zip(TIME, formulas, strict=True)
    ]
    # What is less than a twentieth of a per cent would be printed as 0.000.
    return [term for term in terms if term.value >= 0.0005 * speed.step]


def derived(c: Candidate) -> str:
    """Return both derivations as text."""
    memory, time = memory_terms(c), time_terms(c)
    lines = [f"How the forecast of {c.strategy}, {short_mesh(c)} comes about", ""]
    lines.append(_table("memory", "GiB", memory, c.bytes / GIB, c.memory_factor))
    lines.append(_table("time of a step", "s", time, c.step, c.time_factor))
    lines.append("Formulas and sources: docs/explanation/planner.md")
    return "\n".join(lines) + "\n"


def _table(title: str, unit: str, terms: list[Term], total: float, factor: float) -> str:
    rows = [(title, unit, "")]
    for term in terms:
        rows.append((term.name.replace("_", " "), f"{term.value:.3f}", term.formula))
        if term.numbers:
            rows.append(("", "", f"  = {term.numbers}"))
    if factor != 1.0:
        rows.append(("measured runs", f"× {factor:.2f}", "calibration or ledger"))
    rows.append(("sum", f"{total:.3f}", ""))
    return aligned(rows) + "\n"
