"""Check that a plan has room on each card and in each node's memory, at startup and between steps.

Only exactly known needs count here and can refuse a plan: whole models at startup, states, interpreters.
Activations and buffers come on top; the forecast (``predict``) estimates them, is a few per cent off, and
therefore refuses nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from paceline.core.diagnostics import Diagnostic
from paceline.core.units import human_bytes, human_seconds
from paceline.plan import codes
from paceline.plan.cost.memory.model_states import OptimizerStates, states_by_role
from paceline.plan.features.freezing import ALL_TRAINED, Freezing
from paceline.plan.features.lora import adapter_parameters
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.parameter_list import parameters_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec, Decision, ModelStates, Plan, decomposes
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.workload.local_tensors import SIZES, LocalTensor, pieces_of, scale_bytes
from paceline.plan.workload.startup_memory import (
    INTERPRETER,
    PACKING,
    PEFT,
    UNPACKING,
    LoadingSpec,
    ModelBytes,
    card_peak,
    host_peak,
    in_files,
    mapped,
    start_of,
)

KEY = "training.distributed_strategy"


@dataclass(frozen=True)
class MemoryNeeded:
    """Bytes that are needed in any case: per card (``start_card``, ``states_card``: the fullest) and per
    node.

    ``states_card`` and ``states_host`` are None if the states of a model cannot be counted. ``words``:
    describes the strategy's start; ``start_read``: bytes of model files that a node reads meanwhile.
    """

    start_card: int
    start_host: int
    states_card: int | None
    states_host: int | None
    words: str
    start_read: int

    def to_json(self) -> dict[str, int | str | None]:
        """Return plain JSON types."""
        return {field: getattr(self, field) for field in self.__dataclass_fields__}


def room_of(plan: Plan, hardware: Hardware) -> MemoryNeeded | None:
    """Return the memory that ``plan`` needs on ``hardware``; None if the model's size or the startup is
    unknown."""
    start = _start(plan)
    if start is None or plan.shape is None or plan.memory is None:
        return None
    processes = plan.ranks_per_node
    on_cpu = hardware.device == "cpu"
    shapes = {"": plan.shape, **{role: model.shape for role, model in plan.models.items()}}
    # Between steps: the states by location.
    states = _fullest(plan)
    parts = [bytes_by_device(plan, s, on_cpu) for s in states] if states is not None else None
    # At startup: each model as it is read and built, next to the weights of those built before.
    roles = []
    for index, (role, shape) in enumerate(shapes.items()):
        other = plan.models.get(role)
        trained, from_start = other is None or other.trained, other is None or other.model is None
        adapter = plan.adapter if from_start or trained else None
        if states is None:
            roles.append(_model_bytes(plan, shape, adapter, StateBytes(0, 0, 0), start, on_cpu, trained))
            continue
        gradients = trained and start.gradients
        kept = _built(plan, states[index], on_cpu, gradients or (trained and not on_cpu and _buffers(plan)))
        held = _model_bytes(plan, shape, adapter, kept, start, on_cpu, trained)
        if start.flattens and trained and plan.adapter is None:
            # While it is made flat, old and new weights exist side by side.
            held = _with_passing(held, 2 * (states[index].parameters - master_bytes(plan)), on_cpu)
        if gradients and not on_cpu:  # a host's pages of zeros take no room
            held = _with_passing(held, _built(plan, states[index], on_cpu, True, times=2).card, on_cpu)
        roles.append(held)
    first = replace(start, on_card=False) if on_cpu else start
    interpreter = INTERPRETER + (PEFT if plan.adapter is not None else 0)
    # Pages of a mapped file are shared by the node's processes: counted once.
    common = sum(role.mapped for role in roles)
    return MemoryNeeded(
        start_card=0 if on_cpu else round(card_peak(first, roles)),
        start_host=round(host_peak(first, roles, processes, interpreter)),
        states_card=None if parts is None else sum(p.card for p in parts),
        states_host=None
        if parts is None
        else round(processes * (sum(p.host for p in parts) - common + interpreter) + common),
        words=start.words,
        start_read=bytes_a_node(plan, start),
    )


@dataclass(frozen=True)
class StateBytes:
    """Bytes of one rank's states by location."""

    card: int
    host: int
    disk: int


def bytes_by_device(plan: Plan, states: ModelStates, on_cpu: bool = False) -> StateBytes:
    """Return ``states`` by location: offloaded ones in host memory or on NVMe. On a CPU ``card`` is 0."""
    masters, (optimizer, weights) = master_bytes(plan), plan.engine.places
    where = {"none": 0, "cpu": 0, "nvme": 0}
    # DeepSpeed keeps masters and gradients where the optimizer steps.
    where[optimizer] += states.optimizer + states.counters + states.gradients + masters
    where[weights] += states.parameters - masters
    card, host, disk = where["none"], where["cpu"], where["nvme"]
    return StateBytes(0, card + host, disk) if on_cpu else StateBytes(card, host, disk)


def _buffers(plan: Plan) -> bool:
    """Whether an engine allocates gradients with a model; on a host, memory is used only once they are
    written."""
    return plan.world_size > 1 and strategy_spec(plan.strategy).gradient_buffers


def _built(plan: Plan, states: ModelStates, on_cpu: bool, gradients: bool, times: int = 1) -> StateBytes:
    """Return the states after a model is built and before the first step: its weights, and gradients."""
    kept = ModelStates(states.parameters, times * states.gradients if gradients else 0, 0)
    return bytes_by_device(plan, kept, on_cpu)


def _with_passing(model: ModelBytes, held: int, on_cpu: bool) -> ModelBytes:
    """Return ``model`` with the ``held`` bytes that a rank holds temporarily."""
    if on_cpu:
        return replace(model, passing_host=max(model.passing_host, held - model.host))
    return replace(model, passing=max(model.passing, held - model.card))


def _model_bytes(
    plan: Plan,
    shape: ModelShape | None,
    adapter: AdapterSpec | None,
    kept: StateBytes,
    start: LoadingSpec,
    on_cpu: bool,
    trained: bool,
) -> ModelBytes:
    """Return the memory of a model of ``shape`` while it is read and built; ``kept``: its states
    afterwards."""
    if shape is None:
        return ModelBytes(0, kept.card, kept.host)
    size = SIZES[plan.precision.master]
    read = float(SIZES[shape.stored or "float32"] * shape.num_parameters)
    # Trained biases are not counted: at least this is needed.
    listed = adapter and replace(adapter, bias="none")
    pieces = pieces_of(shape, listed, size, freezing=Freezing.of(plan) if trained else ALL_TRAINED) or ()
    # One byte an element marks a quantized piece; no other dtype here has that size.
    packed = [p.numel for p in pieces if p.size == 1]
    scales = scale_bytes(shape, listed)
    model_bytes = float(sum(p.numel * p.size for p in pieces) + scales)
    from_files = mapped(shape) and not decomposes(adapter)
    # Weights that change must be private; frozen ones may stay pages of the file.
    may_stay = on_cpu and start.arrives and from_files and not (trained and adapter is None)
    stays = [may_stay and _as_stored(plan, shape, piece, trained) for piece in pieces]
    pages = float(sum(p.numel for p in compress(pieces, stays)) * SIZES[shape.stored or "float32"])
    # The last layer to be packed lies whole beside the others, before embeddings and norms come. Of parts
    # each rank keeps its own at once, in the model's order: what comes after that layer is not there yet.
    largest_packed = max(packed, default=0)
    # bitsandbytes packs two weights a byte: ``numel`` counts bytes, so twice as many weights.
    scratch = (PACKING if on_cpu else 1) * 2 * largest_packed * size
    there = kept.host - pages if on_cpu else kept.card
    if start.parts:
        share = max(0.0, min(1.0, (there - scales) / (model_bytes - scales))) if model_bytes > scales else 0.0
        later = _after_packed(pieces) * share
        passing = max(0.0, scratch + (2 * largest_packed * size if on_cpu else 0) + largest_packed - later)
    else:
        passing = max(0.0, scratch + sum(packed) + scales - there)
    private = (piece for piece, stay in zip(pieces, stays, strict=True) if not stay)
    largest = max((p.numel * p.size for p in private), default=0)
    if listed and listed.quantization is not None and in_files(shape):
        read = float(max(largest, largest_packed * size))  # a tensor at a time, packed as it is read
    elif from_files:
        read = float(largest)
    elif decomposes(adapter):  # what is left of a weight is made in fp32, on the host
        read = 4.0 * shape.num_parameters
    card, host = (0.0, passing) if on_cpu else (passing, 0.0)
    if start.parts and shape.quantised:
        host = max(host, UNPACKING * SIZES["float32"] * _largest_layer(shape))
    return ModelBytes(model_bytes, kept.card, kept.host, read, card, float(largest), host, pages)


def _after_packed(pieces: Sequence[LocalTensor]) -> int:
    """Return the bytes of the pieces after the last packed one."""
    later = 0
    for piece in reversed(pieces):
        if piece.size == 1:
            break
        later += piece.numel * piece.size
    return later


def _largest_layer(shape: ModelShape) -> float:
    """Return the number of elements of a layer's largest weight (of stacked experts, of one expert)."""
    layers = [p for p in parameters_of(shape) if p.layer is not None]
    return max((p.numel / (p.shape[0] if len(p.shape) > 2 else 1) for p in layers), default=0.0)


def _as_stored(plan: Plan, shape: ModelShape, piece: LocalTensor, trained: bool) -> bool:
    """Whether a frozen weight is kept in its file's dtype."""
    copies = plan.memory is not None and plan.memory.copies
    kept = plan.precision.compute if copies and piece.has_copy else plan.precision.master
    return kept == shape.stored and piece.size > 1 and not (trained and piece.trained)


def master_bytes(plan: Plan) -> int:
    """Return the bytes of the engine's fp32 masters on a rank; they are placed with the optimizer."""
    if not plan.engine.own_masters or plan.shape is None:
        return 0
    trained = (
        plan.shape.num_parameters
        if plan.adapter is None
        else adapter_parameters(plan.shape, plan.adapter) or 0
    )
    return 4 * trained // (plan.mesh.tp * plan.mesh.dp_shard * plan.mesh.cp)


def _fullest(plan: Plan) -> list[ModelStates] | None:
    """Return the states of each model on the rank with the most bytes (rank 0 for several models); None if
    unknown."""
    if not plan.models:
        largest = None if plan.memory is None else plan.memory.largest
        return None if largest is None else [largest]
    states = list(states_by_role(plan, 0).values())
    counted = [s for s in states if s is not None]
    return counted if len(counted) == len(states) else None


def room_problems(plan: Plan, hardware: Hardware, room: MemoryNeeded | None) -> list[Diagnostic]:
    """Return an error for each need larger than a card, or than a node's memory if that is known."""
    if room is None:
        return []
    problems: list[Diagnostic] = []
    card, host = hardware.memory_bytes if hardware.device != "cpu" else 0, hardware.host_memory_bytes
    master, processes = plan.precision.master, plan.ranks_per_node
    size = human_bytes(plan.shape.num_parameters * SIZES[master]) if plan.shape else "?"
    size += f" ({1 + len(plan.models)} models)" if plan.models else ""
    words, states_card, states_host = room.words, room.states_card or 0, room.states_host or 0
    # States first, since a smaller startup would not help.
    if card and states_card > card:
        hint = _in_bf16(plan, card) + _smaller(plan)
        problems.append(codes.PLAN_STATES_CARD(KEY, _lacks(states_card, card, "card"), hint=hint))
    elif card and room.start_card > card:
        lacks, hint = _lacks(room.start_card, card, "card"), _startable(plan)
        problems.append(codes.PLAN_START_CARD(KEY, lacks, words=words, master=master, size=size, hint=hint))
    node = "this host" if plan.num_nodes == 1 else "a node"
    many = f"{processes} process{'es' if processes > 1 else ''} of {node}"
    if host and states_host > host:
        lacks, hint = _lacks(states_host, host, "host memory"), _smaller(plan)
        problems.append(codes.PLAN_STATES_HOST(KEY, lacks, many=many, hint=hint))
    elif host and room.start_host > host:
        lacks, hint = _lacks(room.start_host, host, "host memory"), _startable(plan)
        problems.append(
            codes.PLAN_START_HOST(KEY, lacks, many=many, words=words, master=master, size=size, hint=hint)
        )
    return problems


def rows_problems(plan: Plan, hardware: Hardware) -> list[Diagnostic]:
    """Refuse a micro-batch that cannot fit even with full recomputation and offloading.

    Counted: 8 bytes of token id and one 2-byte hidden state per token. Rows that are not packed have unknown
    lengths and count as one token each; under a pipeline a stage's share of the micro-batch counts.
    """
    if plan.shape is None:
        return []
    rows = plan.batch.micro_batch / plan.mesh.pp
    # Shares of a sequence under cp and tp: a lower bound, which alone justifies a refusal.
    tokens = rows * (plan.seq_len if plan.packing else 1) / (plan.mesh.cp * plan.mesh.tp)
    need, cpu = round(tokens * (8 + 2 * plan.shape.hidden_size)), hardware.device == "cpu"
    need *= plan.ranks_per_node if cpu else 1
    room = hardware.host_memory_bytes if cpu else hardware.memory_bytes
    if not room or need <= room:
        return []
    of = "host memory" if cpu else "card"
    return [
        codes.PLAN_ROWS_ROOM(
            "training.per_device_train_batch_size",
            f"at least {human_bytes(need)} of {human_bytes(room)} of {of}",
            micro_batch=plan.batch.micro_batch,
        )
    ]


def _lacks(need: int, room: int, of: str) -> str:
    return f"at least {human_bytes(need)} of {human_bytes(room)} of {of}"


def _in_bf16(plan: Plan, card: int) -> str:
    """Return a hint if the states in bfloat16 alone leave room on a card."""
    low = plan.precision.compute == "bfloat16" and plan.precision.master == "float32"
    unsharded = (plan.mesh.tp, plan.mesh.cp, plan.mesh.pp) == (1, 1, 1) and plan.adapter is None
    freezing = Freezing.of(plan)
    pieces = pieces_of(plan.shape, plan.adapter, 4, freezing=freezing) if plan.shape is not None else None
    if not low or not unsharded or not pieces or not strategy_spec(plan.strategy).bf16_masters:
        return ""
    states = OptimizerStates.of(pieces, plan.optimizer, bf16_weights=False).pure_bf16()
    count = sum(piece.numel for piece in pieces) / plan.mesh.dp_shard
    if states is None or count * (4 + states.moments) > 0.85 * card:
        return ""
    return "training.pure_bf16: true (weights and moments in bfloat16 alone: half the bytes), "


def _smaller(plan: Plan) -> str:
    adapter = "lora: {r: 16}, " if plan.adapter is None else ""
    return (
        f"{adapter}more devices or nodes to shard the states over, or a smaller model; paceline"
        " plan --hardware 16xH100 tries others"
    )


def _start(plan: Plan) -> LoadingSpec | None:
    start = strategy_spec(plan.strategy).start(plan.engine)
    shapes = [s for s in (plan.shape, *(model.shape for model in plan.models.values())) if s is not None]
    quantised = plan.adapter is not None and plan.adapter.quantization is not None
    return start_of(start, shapes, quantised, decomposes(plan.adapter))


def _startable(plan: Plan) -> str:
    """Return a hint on strategies that start with less memory."""
    reads = (
        "distributed_strategy: fsdp with fsdp: full_shard (no device holds more than its shard, and"
        " no process more than one model)"
    )
    quantised = plan.adapter is not None and plan.adapter.quantization is not None
    if quantised:
        return f"adapters on 16-bit weights (quantization_bit: null) under {reads}, or a smaller model"
    start = _start(plan)
    if start is not None and start.one_reads:
        return "use a machine whose memory can hold the complete model once, or a smaller model"
    return f"{reads}, or a smaller model"


def room_decisions(plan: Plan, hardware: Hardware, room: MemoryNeeded | None) -> Iterator[Decision]:
    """Yield the memory needed at startup as a decision of the plan, with a node's memory if known."""
    if room is None:
        return
    host = hardware.host_memory_bytes
    parts = [f"{human_bytes(room.start_host)} of host memory per node"]
    if hardware.device != "cpu" and room.start_card:
        parts.insert(0, f"{human_bytes(room.start_card)} a card")
    memory = (
        f"{human_bytes(host)} are available"
        if host
        else "the memory of a node is unknown here: set host_memory_gb in a YAML for --hardware"
    )
    yield Decision("start", " and ".join(parts), f"{room.words}; {memory}{in_words(room.start_read)}")


#: Bytes per second of a node's storage that the plan's seconds assume; they scale with the real one.
ASSUMED_SPEED = 10**9
_CUTS_WEIGHTS = 3  # the stage of ZeRO


def bytes_a_node(plan: Plan, start: LoadingSpec) -> int:
    """Return the bytes of models' files that a node reads in a new run: its ranks' parts if each rank reads
    its own, else all. 0 if weights are initialised from the seed.
    """
    models: dict[str, ModelShape] = {}
    if plan.shape is not None and plan.shape.in_files:
        models[""] = plan.shape
    for (
        role,
        model,
    ) in plan.models.items():  # one without a name is the first model again, from the same files
        if model.model is not None and model.shape is not None and model.shape.in_files:
            models[role] = model.shape
    file_bytes = sum(
        shape.file_bytes or SIZES[shape.stored or "float32"] * shape.num_parameters
        for shape in models.values()
    )
    packs = plan.adapter is not None and plan.adapter.quantization is not None
    made_plain = any(shape.quantised and not shape.experts for shape in models.values())
    if not start.parts or packs or made_plain:  # a weight is read whole to be packed, or made plain
        return file_bytes
    mesh, processes = plan.mesh, plan.ranks_per_node
    layout = strategy_spec(plan.strategy).layout(mesh, plan.engine)
    # Below stage 3 each rank holds, and so reads, whole weights.
    cut = mesh.dp_shard * mesh.cp if layout is not None and layout.zero == _CUTS_WEIGHTS else 1
    return round(file_bytes * min(1.0, processes / (cut * mesh.tp * mesh.pp)))


def in_words(num_bytes: int) -> str:
    """Return a text on the bytes that a node reads, and the time at the assumed speed; empty for none."""
    if not num_bytes:
        return ""
    seconds = human_seconds(num_bytes / ASSUMED_SPEED)
    return f"; a new run reads {human_bytes(num_bytes)} of model files a node, {seconds} at 1 GB/s"
