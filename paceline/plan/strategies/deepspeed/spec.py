"""DeepSpeed's engine in the plan: its spec, and model states under ZeRO with DeepSpeed 0.19.8's padding.

The ZeRO stage comes from its file, or from the strategy's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.config.registries.optimizers import StateSplit
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.units import human_bytes
from paceline.plan.features.freezing import Freezing
from paceline.plan.mesh import BatchSplit, Mesh
from paceline.plan.plan import Decision, ModelStates, Plan, Precision
from paceline.plan.strategies.deepspeed.options import LACKING, deepspeed_engine, deepspeed_mesh
from paceline.plan.strategies.deepspeed.zero_block import whole
from paceline.plan.strategies.spec import DEEPSPEED_FORM, Findings, Job, Simulated, StrategySpec
from paceline.plan.strategy_options import DeepSpeedOptions, EngineOptions
from paceline.plan.workload.local_tensors import (
    SIZES,
    LocalTensor,
    counter_bytes,
    moment_bytes,
    pieces_of,
    shard_of,
    tp_share,
    whole_states,
)
from paceline.plan.workload.startup_memory import CARD, CUT, FLAT, LoadingSpec
from paceline.plan.workload.step_spec import WHOLE, StepSpec, Storage, StrategyLayout

ALIGNMENT = 2  # nccl_start_alignment_factor: a flat group's length is a multiple of it times the ranks
PERSISTENCE = 100_000  # default of stage3_param_persistence_threshold
SUB_GROUP = 1_000_000_000  # default of sub_group_size
MASTER = 4


def zero_states(
    plan: Plan, engine: DeepSpeedOptions, pieces: Sequence[LocalTensor], rank: int
) -> ModelStates:
    """Return what ``rank`` keeps: weights in the compute dtype, masters and moments in fp32 partitions."""
    ranks, index = shard_of(plan, rank)
    low = SIZES[plan.precision.compute]
    if engine.zero_stage == 3:
        return _stage3(plan, engine, pieces, ranks, low)
    groups = [g for g in ([p for p in pieces if p.trained and p.decays == d] for d in (True, False)) if g]
    multiple = ALIGNMENT * ranks
    flat = [-(-sum(p.numel for p in group) // multiple) * multiple for group in groups]
    frozen = sum(p.numel * (low if p.size >= 4 else p.size) for p in pieces if not p.trained)
    partition = sum(flat) // ranks
    return ModelStates(
        parameters=frozen + low * sum(flat) + MASTER * partition,
        gradients=_gradients(plan, engine, groups, flat, ranks, index, low),
        optimizer=moment_bytes((partition,), plan.optimizer, MASTER),
        counters=counter_bytes(plan.optimizer) * len(groups),
    )


def _gradients(
    plan: Plan,
    engine: DeepSpeedOptions,
    groups: list[list[LocalTensor]],
    flat: list[int],
    ranks: int,
    index: int,
    low: int,
) -> int:
    """Return the gradient bytes between the last backward and the step.

    The rank's own partition, plus what the storages of its tensors hold in addition.
    """
    sums = accumulation_size(engine, low)
    if engine.offload_optimizer != "none":
        return MASTER * sum(flat) // ranks
    if engine.zero_stage == 1 and plan.precision.compute == "bfloat16" and sums == 4:
        # BF16_Optimizer: unsharded fp32 sums, and bf16 gradients of the last micro-step
        return sums * sum(flat) + low * sum(p.numel for group in groups for p in group)
    if sums != low:
        return sums * sum(flat) // ranks
    kept = 0
    for group, length in zip(groups, flat, strict=True):
        start, end = length // ranks * index, length // ranks * (index + 1)
        position = 0
        for piece in group:  # a gradient that crosses the partition's edge is kept whole
            if position < end and position + piece.numel > start:
                kept += piece.numel
            position += piece.numel
        kept += max(0, end - max(start, position))  # padding after the last parameter
    return low * kept


def accumulation_size(engine: DeepSpeedOptions, low: int) -> int:
    """Return bytes per element of accumulated gradients (``grad_accum_dtype``; else the weights' own)."""
    dtype = as_object(engine.config.get("data_types")).get("grad_accum_dtype")
    return {"fp32": 4, "bf16": 2, "fp16": 2}.get(str(dtype), low)


def _stage3(
    plan: Plan, engine: DeepSpeedOptions, pieces: Sequence[LocalTensor], ranks: int, low: int
) -> ModelStates:
    """Every parameter is sharded by itself; small ones are also kept whole (persistence threshold)."""
    zero = as_object(engine.config.get("zero_optimization"))
    trained = [p for p in pieces if p.trained]
    parts = {id(p): -(-p.numel // ranks) for p in pieces}
    shard_numel = sum(parts[id(p)] for p in trained)
    threshold = whole(zero, "stage3_param_persistence_threshold", PERSISTENCE)
    limit = whole(zero, "stage3_model_persistence_threshold", 2**63 - 1)
    persistent = gathered = 0
    for piece in pieces:
        if piece.numel <= threshold and persistent + piece.numel <= limit:
            persistent += piece.numel
            gathered += parts[id(piece)] * ranks  # with the padding of its last part
    second = secondary_partition(zero, ranks)
    copied = sum(parts[id(piece)] * ranks // second for piece in pieces) if second else 0
    return ModelStates(
        parameters=low * (sum(parts.values()) + gathered + copied) + MASTER * shard_numel,
        gradients=accumulation_size(engine, low) * shard_numel,
        optimizer=moment_bytes((shard_numel,), plan.optimizer, MASTER),
        counters=counter_bytes(plan.optimizer) * _sub_groups(trained, parts, zero),
    )


def secondary_partition(zero: Mapping[str, Json], ranks: int) -> int:
    """Return the ranks that share hpZ's second copy of the weights (ZeRO++); 0 if there is none.

    It is in the compute dtype, frozen weights included: ``_partition_param_sec`` of DeepSpeed 0.19.8 (Wang et
    al. 2023, arXiv:2306.10209).
    """
    requested = zero.get("zero_hpz_partition_size")
    size = requested if isinstance(requested, int) and not isinstance(requested, bool) else 1
    return min(size, ranks) if size > 1 else 0


def _sub_groups(trained: Sequence[LocalTensor], parts: Mapping[int, int], zero: Mapping[str, Json]) -> int:
    """Return the number of tensors the optimizer steps: groups are split at ``sub_group_size`` elements."""
    size, count = whole(zero, "sub_group_size", SUB_GROUP), 0
    for decays in (True, False):
        held = 0
        group = [p for p in trained if p.decays == decays]
        for position, piece in enumerate(group):
            held += parts[id(piece)]
            if held >= size or position == len(group) - 1:
                count, held = count + 1, 0
    return count


LEAST_MOVED = 2**20  # ``MIN_AIO_BYTES`` of DeepSpeed 0.19.8 (runtime/swap_tensor/utils.py)


def nvme_decisions(plan: Plan) -> Iterator[Decision]:
    """Yield how many bytes of the states offloaded to NVMe get there and how many stay in memory."""
    if not isinstance(plan.engine, DeepSpeedOptions):
        return
    zero = as_object(plan.engine.config.get("zero_optimization"))
    requested = [
        part
        for part, device in zip(("offload_optimizer", "offload_param"), plan.engine.places, strict=True)
        if device == "nvme"
    ]
    shape, size, freezing = plan.shape, SIZES[plan.precision.master], Freezing.of(plan)
    pieces = None if shape is None else pieces_of(shape, plan.adapter, size, freezing=freezing)
    if not requested or pieces is None:
        return
    ranks, low = plan.mesh.dp_shard * plan.mesh.cp, SIZES[plan.precision.compute]
    block = as_object(plan.engine.config.get("aio")).get("block_size")
    least = max(LEAST_MOVED, block if isinstance(block, int) else 0)
    if "offload_param" in requested:
        yield _decision(
            "offload_param",
            "weights",
            [low * -(-p.numel // ranks) for p in pieces],
            least,
            f"a rank's part of a weight (one of {ranks})",
        )
    if "offload_optimizer" in requested:
        shard_numel = sum(-(-p.numel // ranks) for p in pieces if p.trained)
        size = whole(zero, "sub_group_size", SUB_GROUP)
        groups = [size] * (shard_numel // size) + [shard_numel % size] * bool(shard_numel % size)
        copies = 1 + moment_bytes((1,), plan.optimizer, 1)  # masters and moments are separate tensors
        yield _decision(
            "offload_optimizer",
            "optimizer states",
            [4 * group for group in groups for _ in range(copies)],
            least,
            "a sub-group of a rank's states",
        )


def _decision(part: str, name: str, parts: list[int], least: int, of: str) -> Decision:
    there, all_ = sum(n for n in parts if n >= least), sum(parts)
    subject = f"zero_optimization.{part}"
    why = (
        f"DeepSpeed moves nothing under {human_bytes(least)} to a drive, and keeps {of} in memory"
        " if it is smaller"
    )
    if there == all_:
        return Decision(subject, "nvme", f"{human_bytes(there)} of {name} per rank")
    if there:
        return Decision(
            subject,
            "nvme",
            f"{human_bytes(there)} of {human_bytes(all_)} of {name} per rank are moved there: {why}",
        )
    return Decision(
        subject,
        "in memory",
        f"none of the {human_bytes(all_)} of {name} per rank is moved to the drive: {why}",
        granted=False,
    )


# 16-bit weights, sums in fp32, fp32 masters and moments
ZERO = Storage(weight=2.0, gradient=4.0, optimizer=12.0)
# bf16 stage 1 keeps the last 16-bit gradients besides fp32 sums
LAST_GRADIENTS = Storage(weight=2.0, gradient=6.0, optimizer=12.0)
_STORAGE = (replace(WHOLE, anew=False), LAST_GRADIENTS, ZERO, ZERO)
_ENGINE = "DeepSpeed's engine reads real memory: its states and communication are computed by formula"
_CUTS_WEIGHTS = 3
_KEEP_PACKED = (1, 2)  # the stages at which quantized weights are neither sharded nor cast


@dataclass(frozen=True)
class DeepSpeedSpec(StrategySpec):
    """Stage 1 shards optimizer states, 2 also gradients, 3 also weights (arXiv:1910.02054)."""

    def lacks(self, axis: str) -> bool:
        return axis in LACKING

    def tensor_key(self, engine: EngineOptions) -> str:
        by_file = isinstance(engine, DeepSpeedOptions) and engine.autotp_size > 1
        return "autotp_size" if by_file else "tp_size"

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        return deepspeed_mesh(job, findings)

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> EngineOptions:
        return deepspeed_engine(self.zero_stage, job, mesh, batch, precision, findings)

    def start(self, engine: EngineOptions) -> LoadingSpec | None:
        drive = isinstance(engine, DeepSpeedOptions) and engine.autotp_size > 1 and "nvme" in engine.places
        return CARD if drive else _start(self._stage(engine))

    def label(self, engine: EngineOptions) -> str:
        return f"zero{self._stage(engine)}"

    def gathers_by_layer(self, engine: EngineOptions) -> bool:
        return self._stage(engine) == 3

    def sums_as_they_come(self, engine: EngineOptions) -> bool:
        return self._stage(engine) == 2

    def keeps_packed(self, engine: EngineOptions) -> bool:
        return self._stage(engine) in _KEEP_PACKED

    def _stage(self, engine: EngineOptions) -> int:
        """Return the stage of ``engine``, or that of the name before there are options."""
        return engine.zero_stage if isinstance(engine, DeepSpeedOptions) else self.zero_stage or 0

    def states(self, plan: Plan, pieces: Sequence[LocalTensor], rank: int) -> ModelStates | None:
        engine = DeepSpeedOptions.own(plan.engine)
        cut = [tp_share(p, engine.autotp_size, vocabulary=False) for p in pieces]
        return zero_states(plan, engine, cut, rank) if engine.zero_stage else whole_states(plan, cut)

    def shares_frozen(self, engine: EngineOptions) -> bool:
        return DeepSpeedOptions.own(engine).zero_stage == 3

    def in_parts(self, mesh: Mesh, engine: EngineOptions) -> bool:
        return DeepSpeedOptions.own(engine).zero_stage == 3

    def layouts(self) -> tuple[StrategyLayout, ...]:
        if self.zero_stage is not None:
            return (self._layout(self.name, self.zero_stage),)
        return (
            self._layout("zero2 + cpu", 2, offload="optimizer"),
            self._layout("zero3 + cpu", 3, offload="all"),
            self._layout("autotp + zero1", 1, tp=True),
        )

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        optimizer, weights = (device != "none" for device in engine.places)
        zero = as_object(DeepSpeedOptions.own(engine).config.get("zero_optimization"))
        ratio = as_object(zero.get("offload_optimizer")).get("ratio", 1.0)
        layout = self._layout(
            self.name,
            DeepSpeedOptions.own(engine).zero_stage,
            offload="all" if weights else "optimizer" if optimizer else "none",
        )
        return replace(layout, offloaded=float(ratio)) if isinstance(ratio, (int, float)) else layout

    def _layout(self, name: str, stage: int, tp: bool = False, offload: str = "none") -> StrategyLayout:
        return StrategyLayout(
            name,
            self.name,
            stage,
            _STORAGE[stage],
            tp=tp,
            offload=offload,
            packed=stage in _KEEP_PACKED and offload == "none",
            whole_submodules=stage < 3,
            sequence_parallel=not tp,
            autotp=True,
            start=_start(stage),
        )

    def settings(self, work: StepSpec, mesh: Mesh) -> JsonObject:
        if self.zero_stage is not None and work.offload == "none" and work.tp == work.cp == 1:
            return {"distributed_strategy": self.name}
        zero: JsonObject = {"stage": work.zero}
        if work.offload != "none":
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if work.offload == "all":
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
        # A DeepSpeed file without a precision means float32
        section: JsonObject = {"bf16": {"enabled": "auto"}, "zero_optimization": zero}
        if work.tp > 1:
            section["tensor_parallel"] = {"autotp_size": work.tp}
        if work.cp > 1:
            section["sequence_parallel_size"] = work.cp
        return {"distributed_strategy": self.engine_name, "deepspeed": section}


def _start(stage: int) -> LoadingSpec:
    """Return where the model is held at startup. At stage 0 the engine does not build it; stage 3 shards
    every tensor."""
    return CARD if not stage else CUT if stage == _CUTS_WEIGHTS else FLAT


def _zero(name: str, stage: int | None, sharding: str) -> DeepSpeedSpec:
    return DeepSpeedSpec(
        name,
        ("deepspeed",),
        "deepspeed",
        sections=frozenset({"deepspeed"}),
        zero_stage=stage,
        substitute=("fsdp", sharding),
        shards_weights=stage == 3,
        whole_modules=False,
        not_compiled=(
            "DeepSpeed's engine works by hooks inside the layers, which a compiled layer does not call"
        ),
        state_split=StateSplit.FLAT,
        adapter_axes=frozenset({"tp"}),
        float64=False,
        quantised_base=stage in _KEEP_PACKED,
        engine_casts=True,
        needs_group=True,
        simulated=Simulated.MODULE,
        not_simulated=_ENGINE,
        state_form=DEEPSPEED_FORM,
    )


DEEPSPEED = _zero("deepspeed", None, "shard_grad_op")
ZERO1, ZERO2, ZERO3 = (
    _zero("zero1", 1, "shard_grad_op"),
    _zero("zero2", 2, "shard_grad_op"),
    _zero("zero3", 3, "full_shard"),
)
