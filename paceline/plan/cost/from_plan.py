"""Convert a resolved plan to the cost model's ``StepSpec``, with states counted exactly, and predict it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from paceline.config.sections.training_scale import Parallelism
from paceline.core.errors import ConfigError
from paceline.plan.algorithms.rollout import graph_obstacle, rollout_sizes
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.cost.memory.fits import master_bytes
from paceline.plan.cost.memory.model_states import OptimizerStates
from paceline.plan.cost.memory.peak import gradients_met
from paceline.plan.cost.search import Candidate, SearchSpec, decoded, own_kernels, predicted
from paceline.plan.features.freezing import Freezing, trained_part
from paceline.plan.hardware.device_catalogue import FULL_PRECISION, AcceleratorCluster, card_named
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.family import PROJECTOR, VISION, in_part, parts_of
from paceline.plan.model.parameter_list import of_adapter
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec, Plan, decomposes
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.workload.local_tensors import SIZES, orthogonal, pieces_of
from paceline.plan.workload.startup_memory import start_of
from paceline.plan.workload.step_spec import (
    AdapterSize,
    Machine,
    PictureWork,
    RolloutSpec,
    StepSpec,
    StrategyLayout,
)

#: Outputs that a layer with DoRA keeps for the gradient of their lengths: its own, and the product's.
DORA_OUTPUTS = 2.0
CORE_FLOPS, CORE_BYTES = 40e9, 10e9  # rough figures of one CPU core: fp32 FLOP/s, memory bytes/s
PROCESS = 0.45 * 2**30  # resident bytes of an interpreter with torch and Transformers, before any tensor


def cluster_of_hardware(hardware: Hardware, nodes: int) -> AcceleratorCluster | None:
    """Return the probed machine with the catalogue's bandwidths; None for a CPU or an unlisted card."""
    if not is_accelerator(hardware.device):
        return None
    try:
        card = card_named(hardware.device_name)
    except ConfigError:
        return None
    machine = replace(
        card.machine(hardware.num_devices),
        # As probed: the catalogue has the card's size, of which a driver or a MIG slice leaves less.
        memory=float(hardware.memory_bytes),
        host_memory=float(hardware.host_memory_bytes),
    )
    return AcceleratorCluster(
        machine,
        hardware.num_devices * nodes,
        "this machine, links from the catalogue",
        card.bf16,
        card.capability,
        card.unverified,
    )


def cluster_of_cpu(hardware: Hardware, ranks: int) -> AcceleratorCluster:
    """Return a rough model of ``ranks`` CPU processes with equal shares of the cores.

    The ledger corrects it later.
    """
    cores = max(1.0, hardware.cpu_count / max(1, ranks))
    machine = Machine(
        name=hardware.device_name,
        memory=hardware.memory_bytes / max(1, ranks),
        flops=CORE_FLOPS * cores,
        hbm=CORE_BYTES * cores,
        node=max(1, ranks),
        inside=CORE_BYTES,
        outside=1e9,
        host_memory=float(hardware.host_memory_bytes),
        context=False,
    )
    return AcceleratorCluster(machine, max(1, ranks), "an estimate for a CPU")


def cluster_here(hardware: Hardware, world_size: int, num_nodes: int) -> AcceleratorCluster | None:
    """Return the probed accelerators or, roughly, the CPU; None for a card that is not in the catalogue."""
    if hardware.device == "cpu":
        return cluster_of_cpu(hardware, max(1, world_size // max(1, num_nodes)))
    return cluster_of_hardware(hardware, num_nodes)


def predicted_plan(plan: Plan, hardware: Hardware) -> Candidate | None:
    """Predict ``plan`` on the probed accelerators.

    None for a CPU, a card not in the catalogue, an unknown model size, or a strategy without a cost layout.
    """
    return _predicted_on(plan, cluster_of_hardware(hardware, plan.num_nodes))


def predictions(plan: Plan, hardware: Hardware) -> tuple[float, float] | None:
    """Return (bytes of the fullest rank, tokens per second over all ranks), without the ledger's corrections.

    None if there is no prediction. On a CPU the bytes include the interpreter.
    """
    candidate = _predicted_here(plan, hardware)
    if candidate is None:
        return None
    # On a CPU the measured value is the resident set, which holds the interpreter too.
    resident = PROCESS if hardware.device == "cpu" else 0.0
    return candidate.bytes + resident, candidate.work.step_tokens / candidate.step


def predicted_step(plan: Plan, hardware: Hardware) -> float | None:
    """Return the seconds of a step without the rollout before it; None if there is no prediction."""
    candidate = _predicted_here(plan, hardware)
    # ``step`` is corrected by the ledger, so the part taken off must be as well.
    return None if candidate is None else candidate.step - candidate.speed.generation * candidate.time_factor


def _predicted_here(plan: Plan, hardware: Hardware) -> Candidate | None:
    return _predicted_on(plan, cluster_here(hardware, plan.world_size, plan.num_nodes))


def _predicted_on(plan: Plan, cluster: AcceleratorCluster | None) -> Candidate | None:
    spec = search_spec_of(plan, cluster) if cluster else None
    return planned_candidate(plan, spec) if spec else None


def adapter_work(shape: ModelShape, adapter: AdapterSpec | None) -> AdapterSize | None:
    """Return an adapter's trained parameters and bytes per base weight; None without an adapter."""
    if adapter is None:
        return None
    pieces = [p for p in pieces_of(shape, replace(adapter, bias="none"), 4) or () if p.trained]
    factors = sum(p.numel for p in pieces if of_adapter(p.name))
    quantization = adapter.quantization
    base = 2.0
    if quantization:
        # Scales by weight: an fp32 one for 64 weights (4 / 64), or an 8-bit one and an fp32 one for 256 of
        # those (Dettmers et al. 2023, section 3).
        base = quantization.bits / 8 + (0.016 if quantization.double_quant else 0.0625)
    whole = sum(p.numel for p in pieces) - factors
    rescaled = DORA_OUTPUTS if adapter.use_dora else 0.0
    return AdapterSize(factors, base, whole, decomposed=decomposes(adapter), rescaled=rescaled)


def search_spec_of(
    plan: Plan, cluster: AcceleratorCluster, corrections: tuple[float, float] = (1.0, 1.0)
) -> SearchSpec | None:
    """Return the plan's job on ``cluster``, layout left open; None if the model's size is not known."""
    if plan.shape is None:
        return None
    bf16_weights = plan.precision.master == "bfloat16"
    freezing = Freezing.of(plan)
    pieces = pieces_of(plan.shape, plan.adapter, 2 if bf16_weights else 4, freezing=freezing) or ()
    spec = SearchSpec(
        shape=plan.shape,
        cluster=cluster,
        seq_len=plan.seq_len,
        rows=plan.batch.global_batch,
        adapter=adapter_work(plan.shape, plan.adapter),
        flash=plan.attention != "eager",
        scores=plan.whole_scores,
        algorithm=plan.algorithm,
        corrections=corrections,
        rollout=_rollout(plan),
        orthogonal=orthogonal(pieces, plan.optimizer),
        states=replace(
            OptimizerStates.of(pieces, plan.optimizer, bf16_weights=bf16_weights),
            computes_bf16=plan.precision.compute == "bfloat16",
        ),
        frozen_size=_frozen_size(plan),
        trained_part=trained_part(plan.shape, freezing),
        further_forwards=algorithm_spec(plan.algorithm).forwards_of(plan.config.training),
        picture=_picture(plan, {piece.name for piece in pieces if piece.trained}),
    )
    return _with_length(spec, plan)


def _picture(plan: Plan, trained: Collection[str]) -> PictureWork | None:
    """Return a picture's part in a step that trains the parameters ``trained``; None without images, or if
    the tower's layout is not known.
    """
    shape = plan.shape
    if shape is None or not plan.vision or shape.tower is None:
        return None
    parts = parts_of(shape.composite)
    reached = {parts.get(in_part(name, parts)) for name in trained}
    tower, recompute = shape.tower, plan.recompute and not plan.recompute_keeps
    size = SIZES.get(plan.precision.compute, 4)
    saved = tower.saved(size, tower=VISION in reached, projector=PROJECTOR in reached, recompute=recompute)
    # A forward; with gradients a backward of two, and one forward more where it is recomputed.
    passes = 3 + plan.recompute if VISION in reached else 1
    return PictureWork(saved, 4.0 * tower.pixel_values, float(passes * tower.flops()))


def _frozen_size(plan: Plan) -> float:
    """Return mean parameters of frozen models / parameters of the trained one; 1.0 if a size is unknown."""
    shapes = [model.shape for model in plan.models.values() if not model.trained]
    sizes = [shape.num_parameters for shape in shapes if shape is not None]
    # One unknown size makes the mean worthless: then all count like the trained model.
    if plan.shape is None or not sizes or len(sizes) < len(shapes):
        return 1.0
    return sum(sizes) / len(sizes) / plan.shape.num_parameters


def _rollout(plan: Plan) -> RolloutSpec | None:
    spec = algorithm_spec(plan.algorithm)
    options = spec.generation(plan.config.training)
    if options is None or (spec.on_policy and plan.config.training.rollout is None):
        return None
    sizes = rollout_sizes(spec, plan.config.training, plan.batch)
    return RolloutSpec(
        options.max_completion_length,
        sizes.windows,
        sizes.passes,
        options.generation_rows,
        spec.own_fraction(plan.config.training),
        graph_obstacle(plan.device, plan.shape) is None,
    )


def _with_length(spec: SearchSpec, plan: Plan) -> SearchSpec:
    """Return ``spec`` with steps (0 unless the config fixes them), checkpoints kept, and NVMe offloading."""
    training = plan.config.training
    steps, every = max(0, training.max_steps), training.save_steps
    saves = (
        1
        if training.save_strategy == "no" or not steps
        # Below 1 ``save_steps`` is a share of the run, as in Transformers.
        else max(1, int(steps // every) if every >= 1 else round(1 / every) if every else 1)
    )
    parts = zip(("optimizer", "parameters"), plan.engine.places, strict=True)
    return replace(
        spec,
        steps=steps,
        kept=min(saves, training.save_total_limit or saves),
        nvme=frozenset(part for part, device in parts if device == "nvme"),
    )


def of_length(spec: SearchSpec, plan: Plan, epoch: tuple[int, int] | None) -> SearchSpec:
    """Return ``spec`` with the training's length, from the config and an ``epoch``: (rows, tokens).

    ``epoch`` is None before the data is prepared: steps are then ``max_steps``, and rows count as full.
    """
    training = plan.config.training
    if epoch is None or not epoch[0]:
        needed = (
            "once the data is prepared: paceline prepare"
            if algorithm_spec(plan.algorithm).measured
            else "with training.max_steps"
        )
        return replace(
            spec,
            basis=f"rows are assumed to be full, {spec.seq_len:,} tokens"
            if spec.steps
            else f"the total time is predicted {needed}",
        )
    rows, tokens = epoch
    # The last step of an epoch is smaller, but it is a step.
    steps_per_epoch = rows // spec.rows if training.dataloader_drop_last else -(-rows // spec.rows)
    basis = f"{rows:,} rows per epoch, {tokens / rows:,.0f} tokens each on average, as prepared"
    return replace(
        spec,
        steps=spec.steps or math.ceil(training.num_train_epochs * steps_per_epoch),
        row_tokens=tokens / rows,
        basis=basis,
    )


def planned_candidate(plan: Plan, spec: SearchSpec) -> Candidate | None:
    """Return the prediction for the plan's own layout; None for a strategy without a cost layout.

    Without a pipeline, the closed-form states are replaced by the exactly counted ones.
    """
    layout = strategy_spec(plan.strategy).layout(plan.mesh, plan.engine)
    if layout is None:
        return None
    candidate = predicted(layout, step_spec_of(plan, spec, layout), plan.mesh, spec)
    states = plan.memory and plan.memory.largest
    # In a pipeline the fullest stage is not always the rank with the most states.
    if not states or plan.mesh.pp > 1:
        return candidate
    peak = replace(
        candidate.peak,
        parameters=float(states.parameters),
        gradients=float(states.gradients) * gradients_met(candidate.work, candidate.peak),
        optimizer=float(states.optimizer + states.counters),
        others=0.0,  # the states above are those of all models
    )
    offload = candidate.work.offload
    if offload != "none":  # counted exactly, but on the host
        share = candidate.work.offloaded
        peak = replace(
            peak,
            optimizer=peak.optimizer * (1 - share),
            parameters=peak.parameters - share * master_bytes(plan),
        )
    if offload == "all":
        peak = replace(peak, parameters=0.0, gradients=0.0)
    return replace(candidate, peak=peak)


def step_spec_of(plan: Plan, spec: SearchSpec, layout: StrategyLayout) -> StepSpec:
    """Return the plan's layout as ``StepSpec``.

    Bytes per parameter come from ``layout.storage`` (16-bit compute) or from the compute dtype (fp32, fp64).
    """
    mesh, storage, keeps = plan.mesh, spec.states.storage(layout), plan.recompute_keeps
    low = plan.precision.compute in ("bfloat16", "float16")
    size = float(SIZES.get(plan.precision.compute, 4))
    if not low:
        # Without low precision there are no masters beside the weights, and moments have their dtype.
        storage = replace(storage, weight=size, gradient=size, optimizer=2 * size)
    return StepSpec(
        shape=spec.shape,
        machine=spec.cluster.machine if low else _full_precision(spec.cluster.machine),
        seq_len=plan.seq_len,
        micro_batch=plan.batch.micro_batch,
        accumulation=plan.batch.accumulation,
        dp=mesh.data_parallel_size,
        tp=mesh.tp,
        pp=mesh.pp,
        cp=mesh.cp,
        zero=layout.zero,
        shard=(mesh.dp_shard if layout.zero else mesh.data_parallel_size) * mesh.cp,
        storage=storage,
        gathering=layout.gathering,
        recompute=("selective" if keeps else "full") if plan.recompute else "none",
        keeps=keeps,
        flash=spec.flash,
        scores=spec.scores,
        compiled=plan.compile,
        sequence_parallel=(plan.config.training.parallelism or Parallelism()).sequence_parallel,
        stages_a_rank=layout.stages_a_rank,
        adapter=spec.adapter,
        offload=layout.offload,
        offloaded=layout.offloaded,
        algorithm=plan.algorithm,
        kernels=own_kernels(spec, mesh.tp, layout.whole_submodules and not plan.precision.fp8),
        saves=spec.shape.family.saves or 1.0,
        low_precision="fp8" if plan.precision.fp8 else "",
        element=size,
        rollout=decoded(spec.rollout, layout, mesh.tp),
        orthogonal=spec.orthogonal,
        frozen_size=spec.frozen_size,
        trained_part=spec.trained_part,
        further_forwards=spec.further_forwards,
        picture=spec.picture,
        start=start_of(layout.start, [spec.shape], quantised=False, decomposed=decomposes(plan.adapter)),
        master=float(SIZES.get(plan.precision.master, 4)),
    )


def _full_precision(machine: Machine) -> Machine:
    """Return ``machine`` with fp32 throughput: matmuls run as TF32 at best, half of the 16-bit peak."""
    return replace(machine, flops=machine.flops * FULL_PRECISION, reached=machine.reached * FULL_PRECISION)
