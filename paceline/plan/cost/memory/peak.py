"""The peak memory of a rank, term by term, in closed form.

Sources: states by Rajbhandari et al. 2020 (arXiv:1910.02054); activations by class after Korthikanti et al.
2022 (arXiv:2205.05198), with the tensors that an eager SwiGLU and RMSNorm block actually saves; micro-batches
in flight under 1F1B by Narayanan et al. 2021 (arXiv:2104.04473).
``docs/explanation/planner.md`` has each formula. All
numbers are bytes; ``c`` are the coefficients of ``cost.coefficients``.
"""

from __future__ import annotations

from paceline.core.units import human_bytes
from paceline.plan.cost.coefficients import MemoryCoefficients
from paceline.plan.cost.memory.terms import Peak
from paceline.plan.model.kernels import bytes_of_score, head_chunk_bytes
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import ATTENTION, MATMUL
from paceline.plan.workload.step_spec import OWN_LAYERS, StageSize, StepSpec

BUCKET = 25 * 2**20  # DDP's default bucket size
OWN_NORM = 4.0  # bytes per element: input and output of Paceline's RMSNorm in 16 bit, no fp32 copies
OWN_NORM_CPU = 2.0  # on a CPU the output alone (scaled to fp32 by element / 2)
FUSED_GATE = 3.0  # tensors of the inner width that another program's fused gate keeps: its halves and product
LARGE_BUFFER = 20 * 2**20  # torch's CUDACachingAllocator: kLargeBuffer


def peak_of(work: StepSpec, c: MemoryCoefficients, stage_index: int) -> Peak:
    """Return the peak of a rank of pipeline stage ``stage_index`` (0 without a pipeline)."""
    # Model states.
    stage = work.stages[stage_index]
    stage_parameters = work.stage_parameters(stage)
    parameters, gradients, optimizer = _states(work, stage_parameters)
    # Activations: all that layers in flight save, or layer inputs and one live layer if recomputed.
    attention, mlp = _layer(work, c)
    # Layers before the first trained one save nothing: no gradient reaches them.
    slots = max(0, stage.layers - work.trained_part.first_layer) * in_flight(work, stage_index)
    layer = largest_layer(work, attention + mlp)
    working = _scores(work) if stage.layers else 0.0  # of the layer whose gradients are computed
    checkpoints = mlp_gradients = 0.0
    if work.recompute == "full" or work.keeps:
        checkpoints = _inputs(work, c) * slots + layer
        attention, mlp = layer_bytes(work, c)
    logits = _logits(work, c) if stage.head and not work.spec.scalar_head else 0.0
    gathered = throughout = _gathered(work, c, stage_parameters, stage, slots)
    # Two candidates for the peak: the head's forward, and the last layer's backward just after it.
    if logits and work.kernels != "eager" and work.pp == 1:
        # Logits are gone when the backward begins: the peak is where the head computes them, or after it.
        before = _gathered_at_head(work, gathered, stage_parameters, stage)
        after = checkpoints - _inputs(work, c) * slots if checkpoints else 0.0
        flowing = _flowing(work)
        if head_chunks(work) + before >= after + flowing + gathered:
            gathered, checkpoints = before, checkpoints - after
        else:
            logits, mlp_gradients = logits - head_chunks(work), flowing
    layer_sum = attention + mlp
    # A rollout's KV cache is freed before the update: it counts only beyond the update's activations.
    # Never both at once, so the larger of the two counts.
    gathered += max(0.0, _answers(work) - (layer_sum * slots + checkpoints + logits + gathered))
    picture = work.picture
    images = work.pictures * (picture.saved + picture.pixels) if picture is not None else 0.0
    moving = layer_sum * slots + checkpoints + images + logits + gathered + working + mlp_gradients
    # Again two candidates: the backward's begin (all activations) and its end (all gradients).
    if gradients_begin_anew(work):
        first = first_gradients(work, gradients, stage_parameters) if mlp_gradients else 0.0
        one = largest_layer(work, sum(_layer(work, c))) + working + (_flowing(work) if mlp_gradients else 0.0)
        last = throughout + _at_the_end(work, gradients, stage_parameters, one)
        if first + moving >= last + images:
            gradients = first
        else:  # the backward's end: all gradients, and the first layer alone
            slots = checkpoints = logits = mlp_gradients = 0.0
            gathered, working = throughout, last - throughout - gradients
            moving = gathered + working + images
    # Context, fragmentation, other models, and a safety share on top of everything but those models.
    overhead = (c.overhead + (c.communicators if work.world > 1 else 0.0)) * 2**30 * work.machine.context
    fragments = c.fragments * moving + work.outgrown * (moving - layer_sum * slots)
    fragments += c.segments * _segments(work) * layer_sum * slots + c.states_slack * (parameters + gradients)
    others = work.trained_models * (parameters + gradients + optimizer)
    others += (
        work.frozen_models
        * work.frozen_size
        * 2.0
        * stage_parameters
        / (work.sharers if work.zero == 3 else 1)
    )
    # Last, as a share of everything before.
    fragments += c.safety * (parameters + gradients + optimizer + moving + fragments + overhead)
    return Peak(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        attention=attention * slots + working,
        mlp=mlp * slots + mlp_gradients,
        checkpoints=checkpoints,
        images=images,
        logits=logits,
        gathered=gathered,
        others=others,
        fragments=fragments,
        overhead=overhead,
    )


def gradients_begin_anew(work: StepSpec) -> bool:
    """Whether gradients are made while activations are freed, so that most of the two never meet.

    That is so in a window of one micro-batch, unless a reducer or an engine keeps buffers for gradients.
    """
    reduced = work.zero < 3 and work.dp * work.cp > 1
    alone = not work.trained_models and work.accumulation == work.pp == 1
    return work.storage.anew and alone and not reduced


def _at_the_end(work: StepSpec, gradients: float, parameters: float, one: float) -> float:
    """Return the bytes of gradients and of the first layer, ``one``, when the backward ends.

    The embedding's gradient comes after that layer's. A tied one is the head's until then: the embedding's
    is made beside it, and their sum beside both.
    """
    share = _embedding_share(work, parameters)
    if work.shape.tied:
        return gradients + max(one, 2 * share * parameters * work.storage.gradient)
    return max(gradients, gradients * (1 - share) + one)


def gradients_met(work: StepSpec, peak: Peak) -> float:
    """Return which share of a rank's gradients exists at the ``peak``; 1 if there are none."""
    [stage] = work.stages
    gradients = _states(work, work.stage_parameters(stage))[1]
    return peak.gradients / gradients if gradients else 1.0


def first_gradients(work: StepSpec, gradients: float, parameters: float) -> float:
    """Return the bytes of gradients that exist when the layers' backward begins: the head's."""
    trained = work.adapter is None or work.adapter.full_modules > 0
    return gradients * _embedding_share(work, parameters) if trained else 0.0


def _embedding_share(work: StepSpec, parameters: float) -> float:
    return work.embedding_parameters / work.tp / parameters if work.adapter is None else 0.0


def _layer(work: StepSpec, c: MemoryCoefficients) -> tuple[float, float]:
    """Return the bytes that a layer saves without recomputation: (attention with its norm, MLP with its)."""
    attention, mlp = with_state(work, *_kept(work, c))
    return attention * work.element / 2, mlp * work.element / 2


def layer_bytes(work: StepSpec, c: MemoryCoefficients) -> tuple[float, float]:
    """Return the bytes that a layer saves for a micro-batch's backward: (attention, MLP), each with its
    norm."""
    if work.recompute != "full" and not work.keeps:
        return _layer(work, c)
    attention, mlp = _kept_outputs(work)
    return attention * work.element / 2, mlp * work.element / 2


def _flowing(work: StepSpec) -> float:
    """Return the bytes of gradients in an MLP's backward.

    They are of its product and of what went in, and of the layer's output. The product itself is made once
    more, for the last weight's gradient.
    """
    # A token of a mixture visits several experts' widths.
    inner = work.shape.intermediate * max(1.0, _visited(work)) / work.tp
    tensors = (3 if work.shape.family.gated else 2) + (0 if work.adapter is not None else 1)
    return work.element * work.tokens * (tensors * inner + work.shape.hidden_size)


def _inputs(work: StepSpec, c: MemoryCoefficients) -> float:
    """Return the bytes of a recomputed layer's input."""
    count = c.checkpoint * work.element * work.tokens * work.shape.hidden_size
    return count / (work.tp if work.sequence_parallel else 1)


def saved_bytes(work: StepSpec, c: MemoryCoefficients) -> float:
    """Return the bytes of activations when the backward begins, of the layer that it recomputes first too."""
    [stage] = work.stages
    layers = max(0, stage.layers - work.trained_part.first_layer)
    saved = sum(layer_bytes(work, c)) * layers + (_scores(work) if stage.layers else 0.0)
    if work.recompute == "full" or work.keeps:
        saved += _inputs(work, c) * layers + largest_layer(work, sum(_layer(work, c)))
    return saved


def _gathered_at_head(work: StepSpec, gathered: float, parameters: float, stage: StageSize) -> float:
    """Return the bytes that are gathered while the head computes: ZeRO-3's last layer, and what stays."""
    if work.zero < 3:
        return gathered
    return kept_gathered(work, parameters, stage) + work.element * work.layer_parameters / work.tp


def _unsharded(
    work: StepSpec, c: MemoryCoefficients, parameters: float, stage: StageSize, trained: float
) -> float:
    """Return the bytes of weights and gradients that ZeRO-3 holds unsharded in a backward."""
    how, layer = work.gathering, work.layer_parameters / work.tp
    weights = kept_gathered(work, parameters, stage)
    frozen = work.adapter
    if not how.keeps_all:
        each = work.element if frozen is None else frozen.base_bytes
        # FSDP's root unit: embedding and head stay from forward to backward
        root = c.root_unit if work.kernels == "eager" else 1.0
        weights = root * weights + each * (2 if work.prefetch else 1) * layer
    unit = parameters if how.one_unit else layer
    if frozen is None:
        # fp32, of the unit whose backward runs, until they are reduce-scattered.
        gradients = 4.0 * unit
    else:  # frozen weights have none; quantized ones are expanded a matrix at a time
        gradients = 4.0 * trained * unit / parameters
        expanded = work.shape.hidden_size * work.shape.intermediate / work.tp
        weights += work.element * expanded if frozen.base_bytes < 2 else 0.0
    # Small models keep whole gradients between micro-batches (``FSDP.no_sync``).
    if work.accumulation > 1 and 4.0 * trained <= how.whole_gradients:
        gradients += 4.0 * trained
    return weights + gradients


def kept_gathered(work: StepSpec, parameters: float, stage: StageSize) -> float:
    """Return the bytes of weights that stay gathered from forward to backward: all, or embedding and head."""
    if work.gathering.keeps_all:
        if work.adapter is None:
            return work.element * parameters
        return work.adapter.base_bytes * parameters + work.element * work.adapter.trained / work.tp
    if work.gathering.ends_apart:
        return 0.0
    return work.element * (parameters - stage.layers * work.layer_parameters / work.tp)


def _answers(work: StepSpec) -> float:
    """Return the bytes of a rollout's KV cache: all concurrent sequences at full length."""
    rollout = work.answers
    if rollout is None:
        return 0.0
    rows = min(rollout.rows, work.micro_batch * work.accumulation * rollout.windows)
    shape = work.shape
    return (
        2
        * work.element
        * shape.layers
        * shape.kv_heads
        * shape.head_dim
        * work.seq_len
        * rows
        / (work.tp * work.pp)
    )


def worst_peak(work: StepSpec, c: MemoryCoefficients) -> tuple[int, Peak]:
    """Return (stage, peak) of the fullest pipeline stage, from the first two and the last two stages."""
    # Activations fall from stage to stage; embedding and head make the two ends larger.
    places = {0, 1, work.pp - 2, work.pp - 1} if work.pp > 1 else {0}
    peaks = [(stage, peak_of(work, c, stage)) for stage in sorted(p for p in places if 0 <= p < work.pp)]
    return max(peaks, key=lambda pair: pair[1].total)


def in_flight(work: StepSpec, stage: int) -> float:
    """Return the number of micro-batches whose activations a stage holds under 1F1B (Narayanan et al. 2021).

    A stage holds one per stage from itself to the last, at most ``accumulation``; interleaved schedules hold
    more.
    """
    if work.pp == 1:
        return 1.0
    held = float(min(work.accumulation, work.pp - stage))
    if work.stages_a_rank > 1:
        held = min(float(work.accumulation), held * (1 + (work.pp - 1) / (work.pp * work.stages_a_rank)))
    return held


def _states(work: StepSpec, parameters: float) -> tuple[float, float, float]:
    """Return (weights, gradients, optimizer) bytes of a rank with ``parameters`` unsharded parameters."""
    share = work.sharers
    s, adapter = work.storage, work.adapter
    if adapter is not None:
        trained = adapter.trained * parameters / work.shape.num_parameters
        weights = frozen_bytes(work, parameters) / (share if work.zero == 3 else 1) + trained * s.weight
        gradients, optimizer = trained * s.gradient, trained * s.optimizer / (share if work.zero else 1)
        if work.offload == "all":
            weights = gradients = 0.0
        return weights, gradients, optimizer * (1 - work.offloaded if work.offload != "none" else 1)
    weights = parameters * s.weight / (share if work.zero == 3 else 1)
    parameters *= work.trained_part.share
    gradients = parameters * s.gradient / (share if work.zero >= 2 else 1)
    optimizer = parameters * s.optimizer / (share if work.zero >= 1 else 1)
    if work.offload in ("optimizer", "all"):
        optimizer *= 1 - work.offloaded
    if work.offload == "all":
        weights = gradients = 0.0
    return weights, gradients, optimizer


def frozen_bytes(work: StepSpec, parameters: float) -> float:
    """Return the unsharded bytes of ``parameters`` frozen weights under an adapter; 0 without one."""
    adapter = work.adapter
    if adapter is None:
        return 0.0
    quantised = work.shape.layers * work.layer_parameters * parameters / work.shape.num_parameters
    return quantised * adapter.base_bytes + adapter.end_bytes * (parameters - quantised)


def _kept(work: StepSpec, c: MemoryCoefficients) -> tuple[float, float]:
    """Return the elements that one layer saves per micro-batch: (attention with its norm, MLP with its norm).

    Counted at two bytes per element. Attention: residual, the norm's output, q, k and v (expanded to all
    heads if the block does so), the attention's output. Under Ulysses q, k and v are saved after the
    exchange, with the same number of elements. MLP: residual, the norm's output, and four tensors (gate, up,
    silu(gate), their product) or two (before and after GELU) of the inner width.
    """
    shape = work.shape
    h, q, kv = shape.hidden_size, shape.heads * shape.head_dim, work.kv_width
    tokens = work.tokens
    fused = work.kernels == "fused"
    on_cpu = work.element == 4 and not work.machine.context
    own_norm = OWN_NORM_CPU if on_cpu else OWN_NORM
    norm = own_norm * h if work.kernels in OWN_LAYERS or work.fused else c.norm * h
    attention = norm + (4.0 * (q + kv) if fused else c.query * q + c.keys * kv)
    if work.cp > 1 and not work.ring:  # the attention's output both by heads and by tokens
        attention += 2.0 * q
    inner = shape.intermediate * max(1.0, _visited(work))
    second = 0.0 if work.shape.family.parallel_residual else norm
    kept = 2.0 if fused or not work.shape.family.gated else FUSED_GATE if work.fused else c.gated
    mlp = second + 2.0 * inner * kept
    if fused:
        attention, mlp = attention * work.saves, mlp * work.saves
    if not work.flash:
        # Korthikanti et al. 2022, equation 1: 5 a s / h a token: scores, softmax and dropout.
        attention += 5.0 * shape.heads * work.seq_len / work.cp
    if work.compiled:
        attention, mlp = attention * c.compiled, mlp * c.compiled
    if work.adapter is not None:
        attention += 2.0 * work.adapter.rescaled * (h + q + 2 * kv)
        mlp += 2.0 * work.adapter.rescaled * (h + (2.0 if work.shape.family.gated else 1.0) * inner)
    # torchtitan's: keeps outputs of attention and of every second matmul (q, v, gate, down)
    if work.recompute == "selective" and not work.keeps:
        attention, mlp = 2.0 * (h + 2 * q + kv), 2.0 * (h + inner)
    attention += _scores(work) * work.tp / work.tokens * 2 / work.element
    split = work.tp
    if work.tp > 1 and not work.sequence_parallel:  # norms, residuals unsharded: Korthikanti's 10 + 24/t
        return tokens * (norm + (attention - norm) / split), tokens * (second + (mlp - second) / split)
    return tokens * attention / split, tokens * mlp / split


def _kept_outputs(work: StepSpec) -> tuple[float, float]:
    """Return the bytes that recomputation keeps of one layer next to its input, at two bytes per element. It
    keeps the output of attention with its log-sums (fp32), and the outputs of the matrix products (q, k, v,
    the output projection; gate and up).
    """
    shape = work.shape
    attention = mlp = 0.0
    if ATTENTION in work.keeps:
        attention += 2.0 * shape.heads * shape.head_dim + 4.0 * shape.heads * 2.0 / work.element
    if MATMUL in work.keeps:
        inner = shape.intermediate * max(1.0, _visited(work))
        attention += 2.0 * (shape.heads * shape.head_dim + 2 * work.kv_width + shape.hidden_size * work.tp)
        mlp += 2.0 * inner * (2.0 if work.shape.family.gated else 1.0)
        # ``models.fused_layers.swiglu`` writes the last product into its own buffer
        if work.kernels != "fused":
            mlp += 2.0 * shape.hidden_size * work.tp
    return work.tokens * attention / work.tp, work.tokens * mlp / work.tp


def score_bytes(work: StepSpec) -> float:
    """Return the bytes that a layer's scores keep for the backward, where no kernel computes them by blocks.
    They are the capped scores, their softmax in fp32, and the softmax in the compute dtype. The backward
    needs as many again. Dropout works in fp32, on copies of queries and keys. Each document counts as a
    whole row.
    """
    shape = work.shape
    a_token = bytes_of_score(shape.dropout) * work.seq_len + (8.0 * shape.head_dim if shape.dropout else 0.0)
    return a_token * shape.heads * work.tokens / work.tp


def _scores(work: StepSpec) -> float:
    return score_bytes(work) if work.scores else 0.0


def _segments(work: StepSpec) -> float:
    """Return how far a tensor exceeds the allocator's shared segments (0 to 1), if micro-batches overlap."""
    if work.tp == 1 or work.pp == 1 or work.accumulation == 1:
        return 0.0
    size = 2.0 * work.tokens * work.shape.hidden_size / work.tp
    return min(1.0, max(0.0, (size - LARGE_BUFFER) / (2 * LARGE_BUFFER)))


def _visited(work: StepSpec) -> float:
    """Return the number of experts per token (1 for a dense model)."""
    if not work.shape.experts:
        return 1.0
    # Weights of one expert: gate, up and down, or up and down.
    expert = (3 if work.shape.family.gated else 2) * work.shape.hidden_size * work.shape.intermediate
    q, kv = work.shape.heads * work.shape.head_dim, work.shape.kv_heads * work.shape.head_dim
    attention = work.shape.hidden_size * (2 * q + 2 * kv)
    return (work.layer_matmul - attention) / expert


def _logits(work: StepSpec, c: MemoryCoefficients) -> float:
    """Return the bytes of logits, their fp32 copy, its softmax and gradients; less if computed in chunks."""
    if work.kernels != "eager":
        return head_chunks(work) + head_kept(work)
    if work.fused_loss:
        return c.fused_logits * 2**30
    return c.logits / (2 if work.half_loss else 1) * work.tokens * work.shape.vocab / work.tp


def head_kept(work: StepSpec) -> float:
    """Return what the head saves for its backward: gradients, which its forward computes."""
    trained = work.adapter is None or work.adapter.full_modules > 0
    gradient = 4.0 * work.embedding_parameters / work.tp if trained else 0.0
    # [V, H] in fp32, and the gradient of the hidden states.
    return gradient + work.element * work.tokens * work.shape.hidden_size


def head_chunks(work: StepSpec) -> float:
    """Return the bytes that the head holds while it computes, at both sides of the last norm and in logits.

    Logits are a chunk in the dtype of the products, and in 16 bit one in fp32 too. A fused kernel spares the
    latter (``models.heads.chunked_cross_entropy``).
    """
    ends = 2.0 * work.element * work.tokens * work.shape.hidden_size
    logits = work.tokens * work.shape.vocab / work.tp
    chunk = float(chunk_of(work))
    wide = min(chunk, 4.0 * logits)
    return ends + wide + (0.0 if work.element == 4 else min(chunk, work.element * logits))


def chunk_of(work: StepSpec) -> int:
    """Return the bytes of one chunk of the head's logits on the machine's device."""
    return head_chunk_bytes(work.machine.memory if work.machine.context else 0)


def _gathered(
    work: StepSpec, c: MemoryCoefficients, parameters: float, stage: StageSize, slots: float
) -> float:
    """Return the bytes of temporarily gathered tensors: sequence shards, ZeRO-3's weights, buckets."""
    h = work.shape.hidden_size
    gathered = 0.0
    reduced = work.trained_part.share * parameters if work.adapter is None else float(work.adapter.trained)
    if work.tp > 1 and work.sequence_parallel:
        each, ends = c.gathered, c.gathered_ends
        # measured in pipelines: almost none with two stages, more with larger groups, little beyond two nodes
        if work.pp > 1:
            far = 0.25 if work.tp > 2 * work.machine.node else 1.0
            # Fitted to published runs (dev/research/planner_accuracy.py); no formula behind it.
            each, ends = c.gathered_pipeline * (far * work.tp / (work.tp + 8) if work.pp > 2 else 0.05), 0.0
        gathered += (each * (slots if work.recompute == "none" else 1) + ends) * work.tokens * h
    # torch's pipelines gather once per window: weights stay gathered, gradients accumulate unsharded
    if work.zero == 3 and work.pp > 1:
        gathered += (2.0 + 4.0) * parameters if work.adapter is None else 2.0 * parameters
    elif work.zero == 3:
        gathered += _unsharded(work, c, parameters, stage, reduced)
    elif work.zero == 2:
        gathered += 2 * 2.0 * min(reduced, c.bucket)
    elif work.dp > 1:
        gathered += min(BUCKET, 2.0 * reduced) + c.replica * reduced
    return gathered


WITHIN = 1.5


def with_state(work: StepSpec, attention: float, mlp: float) -> tuple[float, float]:
    """Return the mean over a rank's layers of (attention with its norm, MLP with its norm), at two bytes per
    element. ``attention`` and ``mlp`` are the bytes of a layer without state. The bytes that a layer with
    state saves count as attention.
    """
    share, each = _of_layers(work)
    return attention * (1 - share) + share * each, mlp * (1 - share)


def largest_layer(work: StepSpec, mean: float) -> float:
    """Return the bytes that the largest layer saves, with ``work.element`` bytes per element; ``mean``: of
    all layers."""
    share, each = _of_layers(work)
    return max(mean, each * work.element / 2) if share else mean


def state_summary(shape: ModelShape | None) -> str:
    """Return the plan's text on a model's layers with state; empty if it has none."""
    if shape is None or shape.listing is None:
        return ""
    count, total = shape.listing.state_layers
    if not count:
        return ""
    return (
        f"{count} of {shape.layers}: {human_bytes(total / count)} of activations a token and layer in 16 bit,"
        f" as their class saves without kernels of their own, within a factor of {WITHIN:g};"
        " such kernels save less"
    )


def _of_layers(work: StepSpec) -> tuple[float, float]:
    """Return (share of layers with state, bytes in 16 bit that one of them saves for a micro-batch)."""
    listing = work.shape.listing
    count, total = listing.state_layers if listing is not None else (0, 0.0)
    return (count / work.shape.layers, work.tokens * total / count / work.tp) if count else (0.0, 0.0)
