"""The spec of FSDP2 (torch's ``fully_shard``), with tensor and context parallelism."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.config.registries.optimizers import StateSplit
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import JsonObject
from paceline.plan import codes
from paceline.plan.features.freezing import Freezing
from paceline.plan.mesh import BatchSplit, Mesh
from paceline.plan.plan import JobToCheck, ModelStates, Plan, Precision
from paceline.plan.strategies.fsdp_options import fsdp_engine, fsdp_mesh, read_fsdp
from paceline.plan.strategies.spec import TORCH_FORM, Findings, Job, Simulated, StrategySpec
from paceline.plan.strategy_options import EngineOptions, FsdpOptions
from paceline.plan.workload.local_tensors import LocalTensor, by_muon, pieces_of, sharded_states, tp_share
from paceline.plan.workload.startup_memory import FIRST, HOST, LoadingSpec
from paceline.plan.workload.step_spec import WHOLE, Gathering, StepSpec, Storage, StrategyLayout

SHARDED = Storage(weight=4.0, gradient=4.0, optimizer=8.0, anew=True)  # fp32 shards, gathered in 16 bit
_LAYER = re.compile(r"\.(layers|layer|h)\.\d+\.")


@dataclass(frozen=True)
class FsdpSpec(StrategySpec):
    """Weights, gradients and optimizer state are sharded; each layer is gathered when it is computed."""

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        training = job.config.training
        if training.torch_compile and read_fsdp(training).wrap == "size":
            yield job.problem(
                codes.STRATEGY_COMPILE,
                "torch.compile needs FSDP units that are whole layers: units by size lie inside them",
                "training.torch_compile",
                "training.fsdp_config",
                hint="set torch_compile: false, or remove min_num_params",
            )
        options = training.fsdp_config if isinstance(training.fsdp_config, dict) else {}
        offload = options.get("cpu_offload") is True or "offload" in str(training.fsdp or "")
        if offload and training.mixed_precision == "fp16":
            yield job.at(codes.STRATEGY_FP16_OFFLOAD(), "training.mixed_precision", "training.fsdp")

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        return fsdp_mesh(job, findings)

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> EngineOptions:
        return fsdp_engine(job, mesh, findings)

    def start(self, engine: EngineOptions) -> LoadingSpec | None:
        return FIRST if isinstance(engine, FsdpOptions) and engine.meta_start else HOST

    def states(self, plan: Plan, pieces: Sequence[LocalTensor], rank: int) -> ModelStates | None:
        cut = [
            tp_share(p, plan.mesh.tp, vocabulary=FsdpOptions.own(plan.engine).loss_parallel) for p in pieces
        ]
        return sharded_states(plan, cut, rank)

    def shares_frozen(self, engine: EngineOptions) -> bool:
        return True

    def in_parts(self, mesh: Mesh, engine: EngineOptions) -> bool:
        return mesh.dp_shard > 1

    def layouts(self) -> tuple[StrategyLayout, ...]:
        def way(name: str, axis: str = "", packed: bool = False, offload: str = "none") -> StrategyLayout:
            return StrategyLayout(
                name,
                self.name,
                3,
                SHARDED,
                tp=axis == "tp",
                cp=axis == "cp",
                hybrid=axis == "dp_replicate",
                offload=offload,
                packed=packed,
                start=FIRST,
                gathering=_gathering(FsdpOptions()),
            )

        return (
            way("fsdp", packed=True),
            way("fsdp hybrid", "dp_replicate"),
            way("fsdp + cp", "cp"),
            way("fsdp + tp", "tp"),
            way("fsdp + cpu", packed=True, offload="all"),
        )

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        zero, storage = (3, SHARDED) if mesh.dp_shard > 1 else (0, WHOLE)
        return StrategyLayout(
            self.name,
            self.name,
            zero,
            storage,
            offload="all" if FsdpOptions.own(engine).cpu_offload else "none",
            start=self.start(engine),
            gathering=_gathering(FsdpOptions.own(engine)),
        )

    def settings(self, work: StepSpec, mesh: Mesh) -> JsonObject:
        keys = super().settings(work, mesh)
        sharding = "hybrid_shard" if work.sharers < work.dp else "full_shard"
        sharding += " offload" if work.offload == "all" else ""
        return {"distributed_strategy": keys.pop("distributed_strategy"), "fsdp": sharding, **keys}

    def collectives(self, plan: Plan) -> dict[str, tuple[int, int]]:
        """Return the collectives per optimizer step, without tensor parallelism.

        Every layer is one FSDP unit; embedding, final norm and head form the root unit, which stays gathered
        from forward to backward. Gradients are reduce-scattered after every micro-batch, or once if unsharded
        ones are small (``whole_gradient_bytes``). FSDP gives no message about units of unequal sizes.
        """
        shape, m, how = plan.shape, plan.batch.accumulation, FsdpOptions.own(plan.engine)
        freezing = Freezing.of(plan)
        pieces = pieces_of(shape, plan.adapter, 4, freezing=freezing) if shape is not None else None
        if pieces is None or how.wrap.unusual:
            return {}
        # Bytes per element, and padded sizes of the units: the root and the layers.
        weight = 2 if plan.precision.compute in ("bfloat16", "float16") else 4
        reduce = 4 if plan.precision.reduce == "float32" else 2
        ranks, gathering = plan.mesh.dp_shard, _gathering(how)
        root, layers = _units(pieces, whole=gathering.one_unit)
        inside = sum(_padded(p, ranks) for unit in layers for p in unit)
        trained = [[p for p in unit if p.trained] for unit in (root, *layers)]
        scattered = sum(_padded(p, ranks) for unit in trained for p in unit)
        reduced = sum(map(bool, trained))
        counts = {}
        if plan.mesh.dp_replicate > 1:
            counts["all-reduce"] = (reduced, reduce * scattered // ranks)
        if ranks == 1:
            return counts
        # Gathers: the root once; layers in the forward and, unless they stay gathered, in the backward.
        passes = 2 if gathering.reshards else 1
        times = m if gathering.reshards else 1
        gathers = (
            passes * len(layers) + 1,
            weight * (passes * inside + sum(_padded(p, ranks) for p in root)),
        )
        once = 4 * sum(p.numel for unit in trained for p in unit) <= how.whole_gradient_bytes
        scatters = 1 if once else m
        counts["reduce-scatter"] = (scatters * reduced, scatters * reduce * scattered)
        counts["all-gather"] = (times * gathers[0], times * gathers[1])
        # Muon gathers the momentum of each matrix that is cut; experts lie whole on a rank.
        cut = [p for p in pieces if p.trained and len(p.shape) == 2 and by_muon(p, plan.optimizer)]
        times, count = counts["all-gather"]
        size = 2 if plan.optimizer.args.get("ns_dtype") == "bfloat16" else 4
        counts["all-gather"] = (times + len(cut), count + sum(size * _padded(p, ranks) for p in cut))
        return counts


def _units(pieces: Sequence[LocalTensor], whole: bool) -> tuple[list[LocalTensor], list[list[LocalTensor]]]:
    """Return the tensors of the root unit and those of each layer's unit; ``whole``: the root is the only
    unit."""
    layers: dict[str, list[LocalTensor]] = {}
    root = []
    for piece in pieces:
        layer = None if whole else _LAYER.search(piece.name)
        if layer is None:
            root.append(piece)
        else:
            layers.setdefault(layer.group(), []).append(piece)
    return root, list(layers.values())


def _gathering(options: FsdpOptions) -> Gathering:
    return Gathering(
        options.reshard_after_forward, options.wrap.policy == "none", options.whole_gradient_bytes
    )


def _padded(piece: LocalTensor, ranks: int) -> int:
    """Return the number of elements after padding dim 0 to a multiple of ``ranks``."""
    return -(-piece.shape[0] // ranks) * ranks * (piece.numel // piece.shape[0])


FSDP = FsdpSpec(
    "fsdp",
    axes=frozenset({"dp_replicate", "dp_shard", "cp", "tp"}),
    sections=frozenset({"fsdp"}),
    min_processes=2,
    sharding="full_shard",
    shards_weights=True,
    whole_modules=False,
    bf16_masters=True,
    fp8=True,
    state_split=StateSplit.SHARDS,
    adapter_axes=frozenset({"tp"}),
    score_axes=frozenset({"tp"}),
    state_form=TORCH_FORM,
    simulated=Simulated.ALL,
)
