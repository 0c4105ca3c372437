"""A recorded step in words."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.units import human_bytes
from paceline.training.profiling.breakdown import COMMUNICATION, OPTIMIZER, OTHER, Breakdown

SHOWN = 12  # rows of a table
_NOTE = (
    "FLOPs are counted from shapes (tokens × weights, attention as if it were not causal; forward, backward"
    " to the inputs, and to the weights that are trained): kernels that compute several modules at once count"
    " whole. Times are of this rank, recorded, so a little longer than those of other steps; a layer's"
    " include its backward."
)


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "–"


def sentence(step: int, rank: int, found: Breakdown) -> str:
    """Return the step in one sentence."""
    total = sum(found.layers.values())
    names = [name for name in ranked(found.layers) if found.layers[name] > 0][:3]
    most = ", ".join(f"{name} {share(found.layers[name], total)}" for name in names)
    communicates = found.exposed + found.hidden
    parts = [
        f"step {step} on rank {rank} took {found.seconds:.3g} s; of the operations' time {most}",
        f"computing {share(found.busy, found.seconds)} of the step",
    ]
    if communicates:
        hidden = share(found.hidden, communicates)
        parts.append(f"communication {share(communicates, found.seconds)}, {hidden} of it hidden")
    return "; ".join([*parts, f"waiting or Python {share(found.waiting, found.seconds)}"])


def text(
    step: int, rank: int, found: Breakdown, flops: Mapping[str, float], states: Mapping[str, int]
) -> str:
    """Return the whole summary: a sentence, and tables by layer and by operation."""
    total = sum(found.layers.values())
    rows = ["kind of layer                     seconds  share    GFLOP  GFLOP/s    allocated"]
    for name in ranked(found.layers):
        seconds, count = found.layers[name], flops.get(name, 0.0)
        rate = f"{count / seconds / 1e9:8.1f}" if count and seconds else " " * 8
        shown = f"{count / 1e9:8.2f}" if count else " " * 8
        rows.append(
            f"{name:<32} {seconds:8.4f} {share(seconds, total):>6} {shown} {rate}"
            f" {human_bytes(found.allocated.get(name, 0)):>12}"
        )
    operations = ["operation                                            seconds  share   calls"]
    by_time = sorted(found.operations, key=lambda name: -found.operations[name][0])
    for name in by_time[:SHOWN]:
        seconds, calls = found.operations[name]
        operations.append(f"{name[:50]:<50} {seconds:9.4f} {share(seconds, total):>6} {calls:7}")
    held = [f"{name:<32} {human_bytes(count):>12}" for name, count in states.items()]
    explained = {
        OPTIMIZER: "the update of the weights",
        COMMUNICATION: "exchange between ranks",
        OTHER: "outside of any layer: gradients added up, clipping, copies",
    }
    legend = [f"{name}: {what}" for name, what in explained.items() if name in found.layers]
    parts = [[sentence(step, rank, found)], rows, legend, operations, ["held after the step", *held], [_NOTE]]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def ranked(seconds: Mapping[str, float]) -> list[str]:
    """Return the names, the longest time first."""
    return sorted(seconds, key=lambda name: -seconds[name])
