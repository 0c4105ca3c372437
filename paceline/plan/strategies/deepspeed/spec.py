"""The spec of DeepSpeed's engine: the ZeRO stage comes from its file, or from the strategy's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.config.registries.optimizers import StateSplit
from paceline.core.json_types import JsonObject, as_object
from paceline.plan.mesh import BatchSplit, Mesh
from paceline.plan.plan import ModelStates, Plan, Precision
from paceline.plan.strategies.deepspeed.options import deepspeed_engine, deepspeed_mesh
from paceline.plan.strategies.deepspeed.zero_states import zero_states
from paceline.plan.strategies.job import Findings, Job
from paceline.plan.strategies.spec import DEEPSPEED_FORM, Simulated, StrategySpec
from paceline.plan.strategy_options import DeepSpeedOptions, EngineOptions
from paceline.plan.workload.local_tensors import LocalTensor, tp_share
from paceline.plan.workload.startup_memory import CARD, CUT, FLAT, LoadingSpec
from paceline.plan.workload.state_bytes import whole_states
from paceline.plan.workload.step_spec import WHOLE, StepSpec, Storage, StrategyLayout

# 16-bit weights, sums in fp32, fp32 masters and moments
ZERO = Storage(weight=2.0, gradient=4.0, optimizer=12.0)
# bf16 stage 1 keeps the last 16-bit gradients besides fp32 sums
LAST_GRADIENTS = Storage(weight=2.0, gradient=6.0, optimizer=12.0)
_STORAGE = (WHOLE, LAST_GRADIENTS, ZERO, ZERO)
_ENGINE = "DeepSpeed's engine reads real memory: its states and communication are computed by formula"
_CUTS_WEIGHTS = 3
_KEEP_PACKED = (1, 2)  # the stages at which quantized weights are neither sharded nor cast


@dataclass(frozen=True)
class DeepSpeedSpec(StrategySpec):
    """Stage 1 shards optimizer states, 2 also gradients, 3 also weights (arXiv:1910.02054)."""

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

    def keeps_packed(self, engine: EngineOptions) -> bool:
        return self._stage(engine) in _KEEP_PACKED

    def _stage(self, engine: EngineOptions) -> int:
        """Return the stage of ``engine``, or that of the name before there are options."""
        return engine.zero_stage if isinstance(engine, DeepSpeedOptions) else self.zero_stage or 0

    def states(self, plan: Plan, pieces: Sequence[LocalTensor], rank: int) -> ModelStates | None:
        engine = _own(plan.engine)
        cut = [tp_share(p, engine.autotp_size, vocabulary=False) for p in pieces]
        return zero_states(plan, engine, cut, rank) if engine.zero_stage else whole_states(plan, cut)

    def shares_frozen(self, engine: EngineOptions) -> bool:
        return _own(engine).zero_stage == 3

    def in_parts(self, mesh: Mesh, engine: EngineOptions) -> bool:
        return _own(engine).zero_stage == 3

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
        zero = as_object(_own(engine).config.get("zero_optimization"))
        ratio = as_object(zero.get("offload_optimizer")).get("ratio", 1.0)
        layout = self._layout(
            self.name,
            _own(engine).zero_stage,
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
        section: JsonObject = {"zero_optimization": zero}
        if work.tp > 1:
            section["tensor_parallel"] = {"autotp_size": work.tp}
        if work.cp > 1:
            section["sequence_parallel_size"] = work.cp
        return {"distributed_strategy": self.engine_name, "deepspeed": section}


def _start(stage: int) -> LoadingSpec:
    """Return where the model starts: at stage 0 it is not the engine's; stage 3 cuts every tensor."""
    return CARD if not stage else CUT if stage == _CUTS_WEIGHTS else FLAT


def _own(engine: EngineOptions) -> DeepSpeedOptions:
    assert isinstance(engine, DeepSpeedOptions)
    return engine


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
