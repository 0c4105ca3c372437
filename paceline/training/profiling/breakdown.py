"""The time of a recorded step by kind of layer, as numbers and in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.units import human_bytes

LAYER, STEP = "layer: ", "step of training"  # names of our own scopes
OPTIMIZER, COMMUNICATION, OTHER = "optimizer", "communication", "other"
_BACKWARD = "autograd::engine::evaluate_function: "
_COMMUNICATION = ("c10d::", "gloo:", "nccl", "hccl", "xccl", "record_param_comms", "_c10d_functional::")
Span = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Op:
    """One recorded event; times in microseconds, ``self_us`` on the device that computes.

    ``sequence`` joins an operation of a backward to the one of the forward that it belongs to; -1: none.
    """

    name: str
    start: float
    end: float
    self_us: float
    parent: Op | None = None
    sequence: int = -1
    on_device: bool = False
    allocated: int = 0

    @property
    def is_scope(self) -> bool:
        return self.name.startswith((LAYER, STEP, "Optimizer.", "ProfilerStep"))

    @property
    def is_communication(self) -> bool:
        return self.name.startswith(_COMMUNICATION)


@dataclass(frozen=True)
class Breakdown:
    """The time of one step, seconds. ``hidden``: communication while the device computed, ``exposed``: while
    it did not; ``waiting``: neither. ``layers`` and ``operations``: self time by name; ``allocated``: bytes.
    """

    seconds: float
    busy: float
    hidden: float
    exposed: float
    waiting: float
    layers: Mapping[str, float]
    operations: Mapping[str, tuple[float, int]]
    allocated: Mapping[str, int] = field(default_factory=dict)


def breakdown(ops: Sequence[Op]) -> Breakdown:
    """Return where the time of the scope STEP went. Raises ValueError if ``ops`` has no such scope."""
    step = next((op for op in ops if op.name == STEP), None)
    if step is None:
        raise ValueError("the step was not recorded")
    real = [op for op in ops if not op.is_scope and op.end > step.start and op.start < step.end]
    device = [op for op in real if op.on_device]
    on_host = [op for op in real if not op.on_device]
    # Where kernels were recorded they are the device's time, else the operations are
    computing = device or [op for op in on_host if not op.name.startswith(_BACKWARD)]
    busy = union((op.start, op.end) for op in computing if not op.is_communication)
    moving = union((op.start, op.end) for op in (device or on_host) if op.is_communication)
    both = length(busy) + length(moving) - length(union((*busy, *moving)))
    whole, covered = step.end - step.start, length(union((*busy, *moving)))
    layers, operations, allocated = _sums(on_host)
    return Breakdown(
        seconds=whole / 1e6,
        busy=length(busy) / 1e6,
        hidden=both / 1e6,
        exposed=(length(moving) - both) / 1e6,
        waiting=max(0.0, whole - covered) / 1e6,
        layers=layers,
        operations=operations,
        allocated=allocated,
    )


def _sums(ops: Sequence[Op]) -> tuple[dict[str, float], dict[str, tuple[float, int]], dict[str, int]]:
    """Return (seconds by layer, (seconds, calls) by operation, bytes allocated by layer)."""
    forward = _layers_of_forward(ops)
    layers, allocated = defaultdict[str, float](float), defaultdict[str, int](int)
    seconds, calls = defaultdict[str, float](float), defaultdict[str, int](int)
    for op in ops:
        name = layer_of(op, forward)
        layers[name] += op.self_us / 1e6
        allocated[name] += max(0, op.allocated)
        if not op.name.startswith(_BACKWARD):
            seconds[op.name] += op.self_us / 1e6
            calls[op.name] += 1
    return dict(layers), {name: (seconds[name], calls[name]) for name in seconds}, dict(allocated)


def _layers_of_forward(ops: Sequence[Op]) -> dict[int, str]:
    """Return the layer of each number that autograd gave in the forward.

    An operation records the number of the next autograd node, so the last operation with a number owns it.
    """
    layers: dict[int, str] = {}
    for op in sorted(ops, key=lambda op: op.start):
        if op.sequence >= 0 and not op.name.startswith(_BACKWARD):
            layer, inside_backward = _scope(op)
            if not inside_backward and layer is not None:
                layers[op.sequence] = layer
    return layers


def _scope(op: Op) -> tuple[str | None, Op | None]:
    """Return the innermost layer around ``op``, or the operation of a backward if that comes first."""
    current: Op | None = op
    while current is not None:
        if current.name.startswith(LAYER):
            return current.name.removeprefix(LAYER), None
        if current.name.startswith(_BACKWARD):
            return None, current
        current = current.parent
    return None, None


def layer_of(op: Op, forward: Mapping[int, str]) -> str:
    """Return the kind of layer to which ``op`` belongs, also in its backward; else the part of the step."""
    current: Op | None = op
    while current is not None:
        if current.name.startswith(_COMMUNICATION):
            return COMMUNICATION
        if current.name.startswith("Optimizer."):
            return OPTIMIZER
        current = current.parent
    layer, backward = _scope(op)
    if layer is None and backward is not None:
        layer = forward.get(backward.sequence)
    return layer or OTHER


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the spans without overlaps, in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in union(spans))


SHOWN = 12  # rows of a table
_NOTE = (
    "FLOPs are counted from shapes (tokens × weights, attention as if it were not causal; forward, backward"
    " to the inputs, and to the weights that are trained): kernels that compute several modules at once count"
    " whole. Times are of this rank, recorded, so a little longer than those of other steps; a layer's"
    " include its backward."
)


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "–"


def sentence(step: int, rank: int, times: Breakdown) -> str:
    """Return the step in one sentence."""
    total = sum(times.layers.values())
    names = [name for name in ranked(times.layers) if times.layers[name] > 0][:3]
    most = ", ".join(f"{name} {share(times.layers[name], total)}" for name in names)
    communicates = times.exposed + times.hidden
    parts = [
        f"step {step} on rank {rank} took {times.seconds:.3g} s; of the operations' time {most}",
        f"computing {share(times.busy, times.seconds)} of the step",
    ]
    if communicates:
        hidden = share(times.hidden, communicates)
        parts.append(f"communication {share(communicates, times.seconds)}, {hidden} of it hidden")
    return "; ".join([*parts, f"waiting or Python {share(times.waiting, times.seconds)}"])


def text(
    step: int, rank: int, times: Breakdown, flops: Mapping[str, float], states: Mapping[str, int]
) -> str:
    """Return the whole summary: a sentence, and tables by layer and by operation."""
    total = sum(times.layers.values())
    rows = ["kind of layer                     seconds  share    GFLOP  GFLOP/s    allocated"]
    for name in ranked(times.layers):
        seconds, count = times.layers[name], flops.get(name, 0.0)
        rate = f"{count / seconds / 1e9:8.1f}" if count and seconds else " " * 8
        shown = f"{count / 1e9:8.2f}" if count else " " * 8
        rows.append(
            f"{name:<32} {seconds:8.4f} {share(seconds, total):>6} {shown} {rate}"
            f" {human_bytes(times.allocated.get(name, 0)):>12}"
        )
    operations = ["operation                                            seconds  share   calls"]
    for name in sorted(times.operations, key=lambda name: -times.operations[name][0])[:SHOWN]:
        seconds, calls = times.operations[name]
        operations.append(f"{name[:50]:<50} {seconds:9.4f} {share(seconds, total):>6} {calls:7}")
    held = [f"{name:<32} {human_bytes(count):>12}" for name, count in states.items()]
    explained = {
        OPTIMIZER: "the update of the weights",
        COMMUNICATION: "exchange between ranks",
        OTHER: "outside of any layer: gradients added up, clipping, copies",
    }
    legend = [f"{name}: {meaning}" for name, meaning in explained.items() if name in times.layers]
    parts = [[sentence(step, rank, times)], rows, legend, operations, ["held after the step", *held], [_NOTE]]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def ranked(seconds: Mapping[str, float]) -> list[str]:
    """Return the names, the longest time first."""
    return sorted(seconds, key=lambda name: -seconds[name])
