"""The peak memory of a rank, term by term, in closed form.

Sources: states by Rajbhandari et al. 2020 (arXiv:1910.02054); activations by class after Korthikanti et al. 2022 (arXiv:2205.05198) with the
tensors that an eager SwiGLU and RMSNorm block really saves; micro-batches in flight of 1F1B by Narayanan et al. 2021 (arXiv:2104.04473).
``docs/planner.md`` has each formula. All numbers are bytes; ``c`` are the coefficients of ``cost.coefficients``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from paceline.plan.cost.coefficients import MemoryCoefficients
from paceline.plan.cost.work import RolloutSpec, StageSize, StepSpec

BUCKET = 25 * 2**20  # DDP's
OWN_NORM = 4.0  # input and output of Paceline's RMSNorm in 16 bit, no fp32 copies
OWN_NORM_CPU = 2.0  # its output alone, in fp32 on a CPU
LOGIT_CHUNK = 64 * 2**20  # models.head_kernels.CHUNK_BYTES
LARGE_BUFFER = 20 * 2**20  # torch's CUDACachingAllocator: kLargeBuffer


@dataclass(frozen=True)
class Peak:
    """Bytes of one rank at its fullest moment."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    attention: float = 0.0  # activations kept for the backward: projections, attention and its norm
    mlp: float = 0.0  # the feed-forward's
    checkpoints: float = 0.0  # inputs of recomputed layers and the one live layer
    logits: float = 0.0  # and loss
    gathered: float = 0.0  # unsharded units, buckets, sequence pieces gathered from the tensor-parallel group
    others: float = 0.0  # models beside the trained one: reference, reward, value
    fragments: float = 0.0
    overhead: float = 0.0  # context and communicators

    @property
    def total(self) -> float:
        """All terms."""
        states = self.parameters + self.gradients + self.optimizer + self.others
        moving = self.attention + self.mlp + self.checkpoints + self.logits + self.gathered
        return states + moving + self.fragments + self.overhead

    def to_json(self) -> dict[str, int]:
        """Whole bytes by term."""
        return {f.name: round(getattr(self, f.name)) for f in fields(self)}


def peak_of(work: StepSpec, c: MemoryCoefficients, place: int) -> Peak:
    """The peak of the ``place``-th rank of a pipeline (0 where there is none)."""
    stage = work.stages[place]
    whole = work.stage_parameters(stage)
    parameters, gradients, optimizer = _states(work, whole)
    attention, mlp = (count * work.element / 2 for count in _kept(work, c))
    slots = stage.layers * in_flight(work, place)
    layer = attention + mlp
    checkpoints = 0.0
    if work.recompute == "full":
        one = c.checkpoint * work.element * work.tokens * work.shape.hidden_size
        checkpoints = one / (work.tp if work.sequence_parallel else 1) * slots + layer
        attention = mlp = 0.0
    logits = _logits(work, c) if stage.head and not work.spec.scalar_head else 0.0  # a scalar head
    gathered = _gathered(work, c, whole, stage, slots)
    layer_sum = attention + mlp
    gathered += max(0.0, _answers(work) - (layer_sum * slots + checkpoints + logits + gathered))
    moving = layer_sum * slots + checkpoints + logits + gathered
    overhead = (c.overhead + (c.communicators if work.world > 1 else 0.0)) * 2**30 * work.machine.context
    fragments = c.fragments * moving + c.segments * _segments(work) * layer_sum * slots
    fragments += c.states_slack * (parameters + gradients)
    others = work.trained_models * (parameters + gradients + optimizer)
    others += work.frozen_models * work.frozen_size * 2.0 * whole / (work.sharers if work.zero == 3 else 1)
    fragments += c.safety * (parameters + gradients + optimizer + moving + fragments + overhead)
    return Peak(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        attention=attention * slots,
        mlp=mlp * slots,
        checkpoints=checkpoints,
        logits=logits,
        gathered=gathered,
        others=others,
        fragments=fragments,
        overhead=overhead,
    )


def _answers(work: StepSpec) -> float:
    """Keys and values of the answers that are written together, before the update begins: at their longest, whole rows."""
    if not work.spec.on_policy:
        return 0.0
    rollout = work.rollout or RolloutSpec(work.seq_len // 2)
    rows = min(rollout.rows, work.micro_batch * work.accumulation * rollout.windows)
    shape = work.shape
    return 2 * work.element * shape.layers * shape.kv_heads * shape.head_dim * work.seq_len * rows / (work.tp * work.pp)


def worst_peak(work: StepSpec, c: MemoryCoefficients) -> tuple[int, Peak]:
    """The fullest place of a pipeline and its peak: the ends and one between are looked at."""
    places = {0, 1, work.pp - 2, work.pp - 1} if work.pp > 1 else {0}
    found = [(place, peak_of(work, c, place)) for place in sorted(p for p in places if 0 <= p < work.pp)]
    return max(found, key=lambda pair: pair[1].total)


def in_flight(work: StepSpec, place: int) -> float:
    """Micro-batches whose activations a stage holds under 1F1B: those that stages behind it have not given back (interleaved: a part more)."""
    if work.pp == 1:
        return 1.0
    held = float(min(work.accumulation, work.pp - place))
    if work.stages_a_rank > 1:
        held = min(float(work.accumulation), held * (1 + (work.pp - 1) / (work.pp * work.stages_a_rank)))
    return held


def _states(work: StepSpec, whole: float) -> tuple[float, float, float]:
    """(weights, gradients, optimizer) of a rank with ``whole`` unsharded parameters."""
    share = work.sharers
    s, adapter = work.storage, work.adapter
    if adapter is not None:
        part = whole * work.tp / work.shape.num_parameters / work.tp
        trained = (adapter.parameters + adapter.full_modules) * part
        quantised = work.shape.layers * work.layer_parameters * part
        frozen = quantised * adapter.base_bytes + adapter.end_bytes * (whole - quantised)
        weights = frozen / (share if work.zero == 3 else 1) + trained * s.weight
        return weights, trained * s.gradient, trained * s.optimizer / (share if work.zero else 1)
    weights = whole * s.weight / (share if work.zero == 3 else 1)
    gradients = whole * s.gradient / (share if work.zero >= 2 else 1)
    optimizer = whole * s.optimizer / (share if work.zero >= 1 else 1)
    if work.offload in ("optimizer", "all"):
        optimizer = 0.0
    if work.offload == "all":
        weights = gradients = 0.0
    return weights, gradients, optimizer


def _kept(work: StepSpec, c: MemoryCoefficients) -> tuple[float, float]:
    """What one layer keeps of one micro-batch for its backward: (attention with its norm, feed-forward with its norm).

    Two bytes an element. Attention: residual, norm's output, q, k and v (spread to all heads where the block does so), the attention's output.
    Under Ulysses q, k and v are kept as exchanged, in as many numbers. Feed-forward: residual, norm's output, and four (gate, up, silu(gate), their product) or two (before and after GELU) of the inner width.
    """
    shape = work.shape
    h, q, kv = shape.hidden_size, shape.heads * shape.head_dim, work.kv_width
    tokens = work.tokens
    fused = work.kernels == "fused"
    on_cpu = work.element == 4 and not work.machine.context
    own_norm = OWN_NORM_CPU if on_cpu else OWN_NORM
    norm = own_norm * h if work.kernels != "eager" else c.norm * h
    attention = norm + (4.0 * (q + kv) if fused else c.query * q + c.keys * kv)
    if work.cp > 1 and not work.ring:  # the attention's output by heads beside the one by tokens
        attention += 2.0 * q
    inner = shape.intermediate * max(1.0, _visited(work))
    second = 0.0 if work.parallel_residual else norm
    mlp = second + 2.0 * inner * (2.0 if fused or not work.gated else c.gated)
    if not work.flash:
        attention += 5.0 * shape.heads * work.seq_len / work.cp
    if work.compiled:
        attention, mlp = attention * c.compiled, mlp * c.compiled
    if (
        work.recompute == "selective"
    ):  # torchtitan's: the attention's output and every second product's (q, v, gate, down) stay
        attention, mlp = 2.0 * (h + 2 * q + kv), 2.0 * (h + inner)
    if (
        work.adapter is not None and work.kernels == "eager"
    ):  # under Paceline's kernels as much is kept as without (simulated)
        attention, mlp = attention * c.frozen_attention, mlp * c.frozen_mlp
    split = work.tp
    if work.tp > 1 and not work.sequence_parallel:  # norms and residuals stay whole: Korthikanti's 10 + 24/t
        return tokens * (norm + (attention - norm) / split), tokens * (second + (mlp - second) / split)
    return tokens * attention / split, tokens * mlp / split


def _segments(work: StepSpec) -> float:
    """From 0 to 1: how far one tensor's size is above what the allocator serves from common segments, where micro-batches overlap."""
    if work.tp == 1 or work.pp == 1 or work.accumulation == 1:
        return 0.0
    size = 2.0 * work.tokens * work.shape.hidden_size / work.tp
    return min(1.0, max(0.0, (size - LARGE_BUFFER) / (2 * LARGE_BUFFER)))


def _visited(work: StepSpec) -> float:
    """Experts that a token visits (1 for a dense model)."""
    if not work.shape.experts:
        return 1.0
    expert = (3 if work.gated else 2) * work.shape.hidden_size * work.shape.intermediate
    q, kv = work.shape.heads * work.shape.head_dim, work.shape.kv_heads * work.shape.head_dim
    attention = work.shape.hidden_size * (2 * q + 2 * kv)
    return (work.layer_matmul - attention) / expert


def _logits(work: StepSpec, c: MemoryCoefficients) -> float:
    """Logits, their fp32 copy, its softmax and gradients, as long as they are whole."""
    if work.kernels != "eager":  # chunks of logits, and the head's gradient made in the forward (models.head_kernels)
        trained = work.adapter is None or work.adapter.full_modules > 0
        gradient = 4.0 * work.embedding_parameters / work.tp if trained else 0.0
        return 3.0 * LOGIT_CHUNK + gradient + work.element * work.tokens * work.shape.hidden_size
    if work.fused_loss:
        return c.fused_logits * 2**30
    return c.logits * work.tokens * work.shape.vocab / work.tp


def _gathered(work: StepSpec, c: MemoryCoefficients, whole: float, stage: StageSize, slots: float) -> float:
    """What lies there unsharded for a while."""
    h = work.shape.hidden_size
    found = 0.0
    reduced = whole if work.adapter is None else float(work.adapter.parameters + work.adapter.full_modules)
    if work.tp > 1 and work.sequence_parallel:
        each, ends = c.gathered, c.gathered_ends
        if (
            work.pp > 1
        ):  # measured: hardly any with two stages, more with larger groups, little over more than two nodes
            far = 0.25 if work.tp > 2 * work.machine.node else 1.0
            each, ends = c.gathered_pipeline * (far * work.tp / (work.tp + 8) if work.pp > 2 else 0.05), 0.0
        found += (each * (slots if work.recompute == "none" else 1) + ends) * work.tokens * h
    if (
        work.zero == 3 and work.pp > 1
    ):  # torch's pipelines gather once a window: weights stay, gradients are added up whole
        found += (2.0 + 4.0) * whole if work.adapter is None else 2.0 * whole
    elif work.zero == 3:
        layer = work.layer_parameters / work.tp
        ends = work.embedding_parameters * (int(stage.embedding) + int(stage.head)) / work.tp
        found += 2.0 * (2 if work.prefetch else 1) * layer + 4.0 * layer + c.root_unit * 2.0 * ends
    elif work.zero == 2:
        found += 2 * 2.0 * min(reduced, c.bucket)
    elif work.dp > 1:
        found += min(BUCKET, 2.0 * reduced) + c.replica * reduced
    return found
