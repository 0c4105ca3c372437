"""The time of an optimizer step, term by term, in closed form (sources: ``docs/explanation/planner.md``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.plan.cost.coefficients import SpeedCoefficients
from paceline.plan.cost.memory.peak import frozen_bytes
from paceline.plan.plan import ATTENTION, MATMUL
from paceline.plan.workload.step_spec import ATTENTION_SHARE, Machine, StageSize, StepSpec

# A layer's step of decoding in a captured graph: the kernels that a fused layer has (tests/unit/device holds
# it to 12), each 3.4 µs at least, however little it computes (A. Gray, "Getting Started with CUDA Graphs",
# NVIDIA 2019).
GRAPH_LAYER = 12 * 3.4e-6


# Attention's forward and backward, in forwards: two products and five (arXiv:2307.08691, section 4.1); it has
# no weights, so an adapter spares nothing.
SCORE_PASSES = 3.5


@dataclass(frozen=True)
class Speed:
    """Seconds of one optimizer step by term.

    ``flops``: the model's FLOPs per step over all ranks, without recomputation.
    """

    compute: float
    tensor_parallel: float
    context_parallel: float
    data_parallel: float
    pipeline: float  # exposed sends between stages
    bubble: float
    optimizer: float
    offload: float
    others: float  # forwards of frozen models, steps of further trained models
    generation: float
    step_tokens: int
    world: int
    flops: float
    peak_flops: float

    @property
    def step(self) -> float:
        """Seconds per step: the sum of all terms."""
        return (
            self.compute
            + self.tensor_parallel
            + self.context_parallel
            + self.data_parallel
            + self.pipeline
            + self.bubble
            + self.optimizer
            + self.offload
            + self.others
            + self.generation
        )

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second over all ranks."""
        return self.step_tokens / self.step

    @property
    def tokens_per_second_per_rank(self) -> float:
        return self.tokens_per_second / self.world

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: FLOPs without recomputation, relative to the data sheet's peak."""
        return self.flops / (self.step * self.world * self.peak_flops)


def speed_of(work: StepSpec, c: SpeedCoefficients) -> Speed:
    """Return the time of a step by term.

    ``step`` adds them up: the slowest stage's time per micro-batch times ``accumulation``, and once per step
    the pipeline bubble, gradient reduction, optimizer, offloading, other models and generation.
    """
    # A pipeline runs at the pace of its slowest stage.
    compute, tensor, gather = max((_slot(work, c, stage) for stage in work.stage_kinds), key=sum)
    m = work.accumulation
    exchange = work.shape.layers / work.pp * _context_parallel(work, c)
    send = _send(work, c)
    # Narayanan et al. 2021, section 2.2: v stages a rank divide the bubble by v.
    bubble = (work.pp - 1) / work.stages_a_rank * (compute + tensor + gather + send)
    reduce = _reduce(work, c, work.largest_stage, compute)
    return Speed(
        compute=(compute + _pictures(work, c)) * m,
        tensor_parallel=tensor * m,
        context_parallel=exchange * m,
        data_parallel=gather * m + reduce,
        pipeline=send * m,
        bubble=bubble,
        optimizer=_optimizer(work, c) + _muon(work, c),
        offload=offload_seconds(work),
        others=(compute + tensor + gather) * m * (work.forwards_beside / 3 + work.trained_models),
        generation=_generation(work, c),
        step_tokens=work.step_tokens,
        world=work.world,
        flops=step_flops(work),
        peak_flops=work.machine.flops,
    )


def _pictures(work: StepSpec, c: SpeedCoefficients) -> float:
    """Return the seconds of tower and projector for a micro-batch's pictures, at the matmuls' speed."""
    if work.picture is None:
        return 0.0
    # What measured products reach; without a measurement 80 % of the data sheet's peak is assumed.
    reached = work.machine.reached or 0.8 * work.machine.flops
    return work.pictures * work.picture.flops / (reached * c.kernel)


def token_flops(work: StepSpec, *, causal: bool = False) -> float:
    """Return the FLOPs per token, forward and backward.

    6 × matmul parameters + 12 × layers × heads × head size × sequence (Kaplan 2020; Narayanan 2021's
    attention term, halved if ``causal``).
    """
    shape = work.shape
    attention = 12.0 * shape.layers * shape.heads * shape.head_dim * work.seq_len
    return 6.0 * shape.matmul_parameters + (attention / 2 if causal else attention)


def step_flops(work: StepSpec) -> float:
    """Return the model's FLOPs per step over all ranks."""
    return (
        token_flops(work) * work.step_tokens * (2 / 3 if work.adapter else (2 + work.trained_part.share) / 3)
    )


def _slot(work: StepSpec, c: SpeedCoefficients, stage: StageSize) -> tuple[float, float, float]:
    """Return the times of one micro-batch's forward and backward on one stage.

    (compute, exposed tensor-parallel communication, exposed ZeRO-3 gathers), in seconds.
    """
    shape, tokens, tp = work.shape, work.tokens, work.tp
    reached = work.machine.reached or 0.8 * work.machine.flops
    peak = (
        reached * {"": 1.0, "fp8": c.low_precision, "fp4": c.low_precision * c.four_bits}[work.low_precision]
    )
    # Matmul and attention FLOPs of a layer.
    # forward, gradient of inputs, gradient of weights
    passes = 2.0 if work.adapter else 2.0 + work.trained_part.share
    again = {"none": 0.0, "selective": c.selective_passes, "full": 1.0}[work.recompute]
    again = 1.0 if work.keeps else again
    products = passes + (0.0 if MATMUL in work.keeps else again)
    scores = SCORE_PASSES + (0.0 if ATTENTION in work.keeps else again)
    passes += again
    # Two FLOP a weight and token in each pass.
    layer = 2.0 * products * tokens * work.layer_matmul / tp
    # Two products, scores and values, over half of the keys (causal).
    attention = 2.0 * scores * tokens * 2 * shape.heads * shape.head_dim * work.seq_len / 2 / tp
    head = 2.0 * 3 * tokens * work.embedding_parameters / tp if stage.head else 0.0
    # Time of a layer alone: matmuls at their efficiency, and elementwise kernels by bytes moved.
    width = shape.hidden_size / tp
    # A saturating form: half the efficiency at a width of ``c.width``, or at ``c.rows`` tokens.
    efficiency = c.kernel / (1 + c.width / width + c.rows / tokens)
    share = ATTENTION_SHARE if work.fused else work.machine.attention
    busy = layer / (peak * efficiency) + attention / (work.machine.flops * share * c.attention)
    busy += _adapter(work, c, 1.0 + products)
    moved = c.elementwise * passes * tokens * (shape.hidden_size * 2 + 2 * shape.intermediate / tp)
    moved += _casts(work, passes)
    moved_time = moved / work.machine.hbm * (c.compiled_time if work.fuses else 1.0)
    moved_time += _expanded(work, passes) / work.machine.hbm
    # Overlap with tensor-parallel communication, bounded by kernel launches.
    bandwidth, waits = _tensor_parallel(work, c)
    alone = busy + moved_time
    launch = c.launch * 1e-3 * passes / 3 * (c.compiled_time if work.fuses else 1.0)
    # A part of the transfer hides behind compute, but the link itself bounds it; latencies add.
    with_group = max(alone + c.tensor_exposed * bandwidth, launch, bandwidth) + waits
    if work.tp > 1 and work.pp > 1:
        spread = Group(work.tp, 1).nodes(work.machine) - 1
        with_group = max(with_group, c.tensor_pipeline * 1e-3 * work.tp * (1 + c.tensor_nodes * spread))
    lone = max(alone, launch)
    compute = stage.layers * lone
    tensor = stage.layers * max(0.0, with_group - lone)
    if stage.head:
        loss = c.loss_moves * tokens * shape.vocab / tp / work.machine.hbm
        compute += head / (peak * efficiency) + loss
    return compute, tensor, stage.layers * _gather(work, c, max(lone, with_group))


def _adapter(work: StepSpec, c: SpeedCoefficients, passes: float) -> float:
    """Return the seconds of an adapter's own products on a layer. Its matrices are as thin as its rank."""
    if work.adapter is None:
        return 0.0
    shape = work.shape
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    widths = 4 * shape.hidden_size + 2 * (q + kv) + 3 * (shape.hidden_size + shape.intermediate)
    each = work.adapter.parameters / shape.layers
    efficiency = c.kernel / (1 + c.width / max(1.0, each / widths) + c.rows / work.tokens)
    reached = work.machine.reached or 0.8 * work.machine.flops
    return 2.0 * passes * work.tokens * each / work.tp / (reached * efficiency)


def _expanded(work: StepSpec, passes: float) -> float:
    """Return the bytes that a layer's packed weights move. Each use reads them, writes them in 16 bits, and
    reads those.
    """
    if work.adapter is None or work.adapter.base_bytes >= 2:
        return 0.0
    return passes * (work.adapter.base_bytes + 2 * 2.0) * work.layer_parameters / work.tp


CASTS = (
    6.0  # bytes an element of a matmul: read for its largest value, read and written in 8 bits, transposed
)


def _casts(work: StepSpec, passes: float) -> float:
    """Return the bytes a layer moves to bring its matmuls' inputs and gradients into 8 bits."""
    if not work.low_precision:
        return 0.0
    shape = work.shape
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inner = shape.intermediate * (2 if shape.family.gated else 1)
    inputs = 3 * shape.hidden_size + q + shape.intermediate  # attention's, the MLP's, q's and the product
    outputs = 2 * shape.hidden_size + q + 2 * kv + inner
    return CASTS * passes / 3 * work.tokens * (2 * inputs + outputs) / work.tp


def _tensor_parallel(work: StepSpec, c: SpeedCoefficients) -> tuple[float, float]:
    """Return (transfer, latency) of a layer's tensor-parallel communication, in seconds.

    4 all-gathers and 4 reduce-scatters of 2·s·b·h bytes per layer (Korthikanti 2022), 2 more with full
    recomputation.
    """
    if work.tp == 1:
        return 0.0, 0.0
    group = Group(work.tp, 1)
    count = 2.0 * work.tokens * work.shape.hidden_size
    times = 8.0 + (2.0 if work.recompute == "full" or work.keeps else 0.0)
    wait = latency(group, work.machine, c)
    return times * (pass_time(group, count, work.machine, c) - wait), times * wait


def _context_parallel(work: StepSpec, c: SpeedCoefficients) -> float:
    """Return the seconds of a layer's all-to-alls of q, k, v and output under Ulysses; not overlapped.

    Jacobs et al. 2023, arXiv:2309.14509.
    """
    if work.cp == 1 or work.ring:
        return 0.0
    group = Group(work.cp, work.tp)
    width = (work.shape.heads * work.shape.head_dim + work.kv_width) * 2 / work.tp
    passes = 3.0 if work.recompute == "full" or work.keeps else 2.0
    wait = latency(group, work.machine, c)
    return passes * (3 * wait + pass_time(group, work.element * work.tokens * width, work.machine, c))


def _gather(work: StepSpec, c: SpeedCoefficients, busy: float) -> float:
    """Return the exposed seconds of a layer's ZeRO-3 communication per micro-batch.

    Weights are gathered for forward and backward, or once a window if they stay; gradients are
    reduce-scattered; compute hides a part.
    """
    if work.zero < 3 or work.sharers == 1:
        return 0.0
    group = Group(work.sharers, work.tp)
    count = work.layer_parameters / work.tp
    if work.adapter:
        count *= work.adapter.base_bytes / 2
    once = work.gathering.keeps_all or work.pp > 1  # torch's pipelines gather and reduce once a window
    each = 2.0 if work.adapter else work.element
    seconds = (1 / work.accumulation if once else 2) * pass_time(group, each * count, work.machine, c)
    if not work.adapter:
        reduced = pass_time(group, gradient_bytes(work) * count, work.machine, c)
        seconds += reduced / (work.accumulation if work.pp > 1 else 1)
    # What compute hides is gone from the step, but slows the compute down.
    return max(0.0, seconds - c.overlap * busy) + c.overlap_slow * min(seconds, busy)


def gradient_bytes(work: StepSpec) -> float:
    """Return the bytes a gradient element has while ranks sum it."""
    return 4.0 if work.storage.gradient >= 4 else 2.0


def _reduce(work: StepSpec, c: SpeedCoefficients, parameters: float, compute: float) -> float:
    """Return the exposed seconds of gradient reduction and weight gathering per accumulation window.

    ZeRO-2 reduces in every micro-batch. The last backward hides a part of the reduction; gathering sharded
    weights is not hidden.
    """
    if work.adapter:
        parameters = work.adapter.trained / work.shape.num_parameters * parameters
    parameters *= work.trained_part.share
    seconds, message = 0.0, c.message * 2**20
    each = gradient_bytes(work)
    # Replicated weights: reduce-scatter gradients, then all-gather gradients or (ZeRO-1, 2) weights.
    if work.zero < 3 and work.dp * work.cp > 1:
        group = Group(work.dp * work.cp, work.tp)
        scatter = pass_time(group, each * parameters, work.machine, c, message)
        averaged_whole = not work.zero or work.storage.sent > 0
        again = pass_time(group, (each if averaged_whole else 2.0) * parameters, work.machine, c, message)
        times = work.accumulation if work.zero == 2 else 1
        hidden = c.overlap * compute * (2 / 3) * times
        if not averaged_whole:
            seconds += max(c.never_hidden * scatter * times, scatter * times - c.zero_overlap * hidden)
            seconds += max(c.never_hidden * again, again - c.zero_overlap * c.overlap * compute / 3)
        else:
            seconds += max(c.never_hidden * (scatter + again), scatter + again - hidden)
        if work.storage.sent:
            seconds += pass_time(group, work.storage.sent * parameters, work.machine, c, message)
    elif work.zero == 3 and work.dp * work.cp > work.sharers:
        # HSDP: after the reduce-scatter each rank all-reduces its shard over the replicas.
        replicas = Group(work.dp * work.cp // work.sharers, work.tp * work.sharers)
        replicated = 2 * pass_time(replicas, each * parameters / work.sharers, work.machine, c, message)
        left = (1 - c.overlap) * compute  # by the gathers
        seconds += max(c.never_hidden * replicated, replicated - left)
    return seconds


def _send(work: StepSpec, c: SpeedCoefficients) -> float:
    """Return the seconds to send a micro-batch's activations and gradients between two stages."""
    if work.pp == 1:
        return 0.0
    inside = work.world // work.pp < work.machine.linked
    count = 2 * 2.0 * work.tokens * work.shape.hidden_size / (work.tp if work.sequence_parallel else 1)
    link = work.machine.inside * c.link_inside if inside else work.machine.outside * c.link_outside
    return c.send * 1e-3 + count / link * work.stages_a_rank


def _optimizer(work: StepSpec, c: SpeedCoefficients) -> float:
    """Return the optimizer step's seconds: Adam moves about 30 bytes per parameter, plus a fixed cost."""
    parameters = float(work.adapter.trained) if work.adapter else work.trained_part.share * work.largest_stage
    if work.zero:
        parameters /= work.sharers
    return c.optimizer_moves * parameters / work.machine.hbm + c.step_fixed


def _muon(work: StepSpec, c: SpeedCoefficients) -> float:
    """Return the seconds of Muon's gathers and iterations, of which nothing is hidden.

    A sharded matrix (ZeRO-3, tensor parallelism) is gathered, and every rank of its shards repeats the
    iterations. Under ``ZeroRedundancyOptimizer`` a rank computes only its own matrices.
    """
    matrices = work.orthogonal
    if matrices is None:
        return 0.0
    sharers = work.sharers if 0 < work.zero < 3 else 1
    stacked = matrices.stacked / (work.sharers if work.zero else 1)
    rate = (work.machine.reached or 0.8 * work.machine.flops) * c.kernel
    seconds = (matrices.flops / sharers + stacked) / work.pp / rate
    ranks = work.tp * (work.sharers if work.zero == 3 else 1)
    if ranks == 1:
        return seconds
    group = Group(ranks, 1)
    waits = (matrices.matrices / work.pp - 1) * latency(group, work.machine, c)
    return seconds + waits + pass_time(group, matrices.size * matrices.elements / work.pp, work.machine, c)


#: Bytes a second that a node's memory moves, whatever its cards ask: two sockets of eight channels DDR4-3200,
#: 204.8 GB/s each (AMD EPYC 7003, data sheet), of which a copy reaches half; and what Adam there reaches.
HOST_COPIES, HOST_ADAM = 200e9, 100e9


def offload_seconds(work: StepSpec) -> float:
    """Return the seconds of offloading: transfers over the host link, and Adam on the host.

    Adam moves about 30 bytes per parameter. A node's cards share its memory.
    """
    if work.offload == "none":
        return 0.0
    cards = min(work.machine.node, work.world)
    # All cards of a node copy at once.
    link = min(work.machine.host, HOST_COPIES / cards)
    parameters, again = work.trained_part.share * work.largest_stage, 2.0 * work.largest_stage
    if work.adapter:
        parameters, again = float(work.adapter.trained), frozen_bytes(work, work.largest_stage)
    sharers = work.sharers if work.zero else 1
    moved = parameters * work.offloaded * 4.0
    if work.offload == "all":
        moved += 2 * work.accumulation * again
    return moved / sharers / link + 30.0 * parameters / sharers * work.offloaded * cards / HOST_ADAM


def _generation(work: StepSpec, c: SpeedCoefficients) -> float:
    """Return a step's share of the rollout's generation time.

    Decoding is memory-bound (Pope et al. 2022, arXiv:2211.05102): each token reads all weights and, on
    average, the KV cache of half a row. A layer takes at least the launch time of its kernels, or their time
    in a graph. All answers of a rollout are generated at once; its steps share the time.
    """
    shape, rollout = work.shape, work.answers
    if rollout is None:
        return 0.0
    cut = work.tp * work.pp
    weights = 2.0 * shape.num_parameters / cut
    answers = work.micro_batch * work.accumulation * rollout.windows
    # Keys and values, two bytes each; on average half a row.
    cached = 2 * 2.0 * shape.layers * shape.kv_heads * shape.head_dim * work.seq_len / 2 * answers / cut
    # 0.6 of the bandwidth is assumed to be reached; stages of a pipeline decode in turn.
    a_token = (weights + cached) / (0.6 * work.machine.hbm) * work.pp
    layer = GRAPH_LAYER if rollout.captured else c.launch * 1e-3 / 3
    rollout_seconds = rollout.answer * max(a_token, layer * shape.layers)
    return rollout.share * rollout_seconds / (rollout.windows * rollout.passes)


@dataclass(frozen=True)
class Group:
    """A process group: ``size`` ranks, ``stride`` apart; its nodes are the ``Machine.linked`` cards."""

    size: int
    stride: int

    def members_in_node(self, machine: Machine) -> int:
        """Number of the group's ranks in one node."""
        linked = machine.linked
        return max(1, min(self.size, linked // self.stride if self.stride < linked else 1))

    def nodes(self, machine: Machine) -> int:
        """Number of nodes that the group spans."""
        return -(-self.size // self.members_in_node(machine))


def bandwidth(group: Group, machine: Machine, c: SpeedCoefficients) -> float:
    """Return a ring's bus bandwidth over the group, in bytes per second.

    Inside a node this is NVLink; between nodes the network adapters of the group's ranks in a node, less on
    more nodes. The decrease with the number of nodes is fitted: measured all-gathers over 1 to 64 nodes (HF's
    cluster) fall from 250 to 11 GB/s.
    """
    nodes = group.nodes(machine)
    inside = machine.inside * c.link_inside
    if nodes == 1:
        return inside
    outside = machine.outside * group.members_in_node(machine) * c.link_outside / nodes**c.link_fall
    return min(inside, outside)


def latency(group: Group, machine: Machine, c: SpeedCoefficients) -> float:
    """Return the seconds before the first byte: a base plus one hop per ring step.

    After NCCL's model (src/graph/tuning.cc).
    """
    nodes = group.nodes(machine)
    return 8.4e-6 + (group.size - nodes) * 3.4e-6 + (nodes - 1) * 14e-6 * c.hop


def pass_time(
    group: Group, count: float, machine: Machine, c: SpeedCoefficients, message: float = math.inf
) -> float:
    """Return the seconds of one all-gather or reduce-scatter of ``count`` bytes (the whole tensor).

    They are sent in messages of ``message`` bytes, each with its latency.
    """
    if group.size <= 1:
        return 0.0
    waits = max(1.0, count / message) * latency(group, machine, c)
    return waits + count * (group.size - 1) / group.size / bandwidth(group, machine, c)
