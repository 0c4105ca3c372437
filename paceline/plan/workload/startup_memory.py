"""Memory at startup: where the whole model is held, in which dtype, and by how many processes.

Each strategy declares its own startup (``StrategySpec.start``, and ``StrategyLayout.start`` for the search).
The figures follow ``models.factory``, ``FSDP.prepare``, ``Pipeline.prepare`` and ``DeepSpeed.prepare``;
``docs/explanation/planner.md`` has measurements. The factory reads a whole model, in the files' dtype if that
loses nothing, and moves it to the strategy's device tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from paceline.plan.model.shape import ModelShape

#: Private bytes of an interpreter with torch and Transformers before any model (measured: 262 MiB).
INTERPRETER = 256 * 2**20
#: More of one that has read peft, and what that reads (measured: 78 MiB).
PEFT = 72 * 2**20
#: Bytes that bitsandbytes needs beside a weight that it packs on a CPU, per byte of it in fp32 (measured).
PACKING = 2.5
#: Of a weight that is stored quantized and becomes plain, itself included (measured: fp8 2.0, others up to
#: 1.4).
UNPACKING = 2.0


@dataclass(frozen=True)
class LoadingSpec:
    """Where the whole model is held at startup; ``words``: a description for messages.

    ``on_card``: every process moves the whole model to its card before it is sharded or cast.
    ``arrives``: each tensor is moved to the card in its final form, so the card never holds more.
    ``one_reads``: only rank 0 holds it in host memory; otherwise every process does. ``parts``: each process
    holds only its own part. ``packs_on_card``: layers to be packed in 4 bits are moved to the card.
    ``flattens``: the engine copies the trained weights into one buffer, so for a moment they exist twice.
    ``gradients``: the engine allocates a buffer of this rank's gradients, and for a moment a second one.
    """

    on_card: bool
    one_reads: bool
    words: str
    arrives: bool = False
    parts: bool = False
    packs_on_card: bool = False
    flattens: bool = False
    gradients: bool = False

    def readers(self, processes: int) -> int:
        """Return how many of a node's ``processes`` hold a whole model in host memory."""
        return 0 if self.parts else 1 if self.one_reads else processes


CARD = LoadingSpec(
    True,
    False,
    "every process reads the complete model and moves it to its device before it is sharded or cast",
)
ARRIVES = LoadingSpec(
    True,
    False,
    "every process reads the complete model into host memory and moves it to its device tensor by tensor,"
    " each in the dtype that is kept there",
    arrives=True,
)
HOST = LoadingSpec(False, False, "every process reads the complete model into host memory and keeps its part")
FIRST = LoadingSpec(
    False, True, "rank 0 reads the complete model into host memory and sends each rank its shard"
)

ENGINE = replace(FIRST, packs_on_card=True)
FLAT = replace(ENGINE, flattens=True)  # ZeRO-1 and 2
CUT = replace(ENGINE, gradients=True)  # ZeRO-3
PARTS = LoadingSpec(False, False, "each rank reads its own part of the model's files", parts=True)


#: In words, where layers are packed in 4 bits, each when it is read.
_PACKED = "every process reads the model's files and packs each layer in 4 bits as it is read"
_PACKED_PARTS = f"{_PACKED}, and keeps its part of that"


def start_of(
    start: LoadingSpec | None, shapes: Iterable[ModelShape], quantised: bool, decomposed: bool = False
) -> LoadingSpec | None:
    """Return where models of these ``shapes`` are held at startup, given the strategy's ``start``.

    If the files hold every tensor, ranks read their own shards and rank 0 sends none
    (``models.loading.sharded_loading``), also below adapters. But rank 0 reads whole weights that are
    ``decomposed`` into an adapter's initial values. A new scalar head is initialized and sent. A
    ``quantised`` base cannot be sent in shards: each rank packs the weights one at a time and keeps its
    shard, or reads the whole model.
    """
    if start is None:
        return None
    certain = not decomposed and all(map(in_files, shapes))
    if quantised and certain and start.one_reads and not start.packs_on_card:
        return replace(PARTS, words=_PACKED_PARTS)
    if quantised:
        unsharded = start if not start.one_reads else CARD if start.packs_on_card else HOST
        return replace(unsharded, words=_PACKED) if certain else unsharded
    if not (certain and start.one_reads):
        return start
    return replace(start, words=PARTS.words, parts=True, one_reads=False, packs_on_card=False)


def in_files(shape: ModelShape) -> bool:
    """Whether the model surely comes from a folder that holds its parameters, as they are or to be stacked
    and joined.
    """
    return shape.in_files and shape.family.parts


def mapped(shape: ModelShape) -> bool:
    """Whether a process reads a whole model without memory of its own: tensors stay mapped from the files, in
    their dtype. All processes of a node share these pages, and the system frees them when memory is short.
    """
    as_they_are = not (shape.experts or shape.latent or shape.composite or shape.quantised)
    return in_files(shape) and shape.exact and as_they_are and bool(shape.stored)


@dataclass(frozen=True)
class ModelBytes:
    """One model of a job, in bytes.

    - ``whole``: the whole model in the masters' dtype, quantized layers packed
    - ``card``, ``host``: a rank's part on the card and in host memory before the first step
    - ``read``: the model in host memory while its files are read (0: as ``whole``)
    - ``passing``: temporary memory on the card: of the last layer to be packed, or of an engine (in host
    memory: ``passing_host``)
    - ``largest``: the largest tensor in the masters' dtype; it passes whole through every card if one rank
    sends all shards
    - ``mapped``: the part that a CPU run keeps mapped from files, so that no process owns its memory
    """

    whole: float
    card: float
    host: float
    read: float = 0.0
    passing: float = 0.0
    largest: float = 0.0
    passing_host: float = 0.0
    mapped: float = 0.0


def card_peak(start: LoadingSpec, roles: Sequence[ModelBytes]) -> float:
    """Return a card's peak bytes while the models are built one by one: the part that stays, or the whole
    model before it is sharded.
    """
    kept, peak = 0.0, 0.0
    for role in roles:
        built = role.whole if start.on_card and not start.arrives else role.card
        passes = role.largest if start.one_reads else 0.0
        peak = max(peak, kept + built + max(passes, role.passing))
        kept += role.card
    return peak


def host_peak(
    start: LoadingSpec, roles: Sequence[ModelBytes], processes: int, interpreter: int = INTERPRETER
) -> float:
    """Return a node's peak host memory while the models are built, including the interpreters."""
    kept, peak = 0.0, 0.0
    for model in roles:
        role = replace(model, host=model.host - model.mapped)
        # shards are created while the whole model is still held
        beside = processes * role.host if start.one_reads or start.parts else 0.0
        built = 0.0 if start.on_card else role.host if start.arrives else role.whole
        held = max(role.read or role.whole, built)
        read = kept + start.readers(processes) * held + beside
        peak = max(peak, read, kept + processes * (role.host + role.passing_host))
        kept += processes * role.host
    return peak + processes * interpreter
