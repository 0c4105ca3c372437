"""Search every layout of a job on a cluster: memory, step time, and why layouts do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan import codes
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.cost.coefficients import memory_coefficients, speed_coefficients
from paceline.plan.cost.memory.model_states import OptimizerStates
from paceline.plan.cost.memory.peak import frozen_bytes, worst_peak
from paceline.plan.cost.memory.terms import Peak
from paceline.plan.cost.step_time import Speed, speed_of
from paceline.plan.features.freezing import TrainedPart
from paceline.plan.hardware.device_catalogue import AcceleratorCluster
from paceline.plan.mesh import Mesh, divisors
from paceline.plan.model.shape import ModelShape
from paceline.plan.strategies.spec import strategy_spec, strategy_specs
from paceline.plan.workload.local_tensors import SIZES, Orthogonal
from paceline.plan.workload.startup_memory import ModelBytes as Held
from paceline.plan.workload.startup_memory import card_peak, host_peak, start_of
from paceline.plan.workload.step_spec import (
    AdapterSize,
    PictureWork,
    RolloutSpec,
    StepSpec,
    StrategyLayout,
    why_not_run,
)

FITS = 0.95  # a layout fits if its predicted peak is below this share of the card's memory …
MARGIN = 0.90  # … and may be chosen below this share
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
GIB = 2**30
TIE = 0.01


@dataclass(frozen=True)
class SearchSpec:
    """The job and its hardware: everything but the layout. ``rows``: rows per optimizer step."""

    shape: ModelShape
    cluster: AcceleratorCluster
    seq_len: int = 4096
    rows: int = 0
    adapter: AdapterSize | None = None
    flash: bool = True
    scores: bool = False
    algorithm: str = "sft"
    tokens: float = 0.0  # tokens of the whole training (or ``steps``); 0: unknown
    steps: int = 0
    row_tokens: float = 0.0  # mean tokens per row if measured; 0: rows count as full
    basis: str = ""  # what the training's length is based on, as text
    kept: int = 1  # number of checkpoints kept
    rollout: RolloutSpec | None = None  # ``captured``: the device and the model allow it
    orthogonal: Orthogonal | None = None
    states: OptimizerStates = OptimizerStates()
    frozen_size: float = 1.0  # parameters of a frozen model / those of the main model
    trained_part: TrainedPart = TrainedPart()  # of the main model
    further_forwards: int | None = None  # None: as the algorithm's spec says
    picture: PictureWork | None = None  # None: rows without images
    nvme: frozenset[str] = frozenset()  # of {optimizer, parameters}: those offloaded to NVMe
    corrections: tuple[float, float] = (1.0, 1.0)  # factors on memory and time, from measured runs
    corrected_by: str = ""  # which runs, as text

    def __post_init__(self) -> None:
        if not self.rows:
            cards = self.cluster.cards
            # About 128 rows, at least two a card, the same number for each.
            object.__setattr__(self, "rows", max(-(-128 // cards), 2) * cards)


@dataclass(frozen=True)
class Candidate:
    """One layout with its predictions. ``limit``: bytes it may use; ``place``: the fullest pipeline stage."""

    layout: StrategyLayout
    work: StepSpec
    mesh: Mesh
    peak: Peak
    place: int
    speed: Speed
    limit: float
    memory_factor: float = 1.0
    time_factor: float = 1.0
    impossible: str = ""

    @property
    def name(self) -> str:
        """The strategy's name; in a world of one that of its spec alone."""
        return (strategy_spec(self.layout.strategy).alone if self.work.world == 1 else "") or self.strategy

    @property
    def strategy(self) -> str:
        """The layout's name in tables."""
        return self.layout.name

    @property
    def bytes(self) -> float:
        """Predicted peak memory of the rank with the most, corrected by measured runs."""
        return self.peak.total * self.memory_factor

    @property
    def card(self) -> float:
        """Bytes of the card's memory, as torch reports them."""
        return self.limit / MARGIN

    @property
    def fits(self) -> bool:
        """Whether it is expected to run."""
        return not self.impossible and self.bytes <= FITS * self.card

    @property
    def safe(self) -> bool:
        """Whether it fits with the margin that is kept when a layout is chosen."""
        return not self.impossible and self.bytes <= self.limit

    @property
    def step(self) -> float:
        """Seconds per optimizer step, corrected by the ledger."""
        return self.speed.step * self.time_factor

    @property
    def binding(self) -> str:
        """Why it is not chosen, e.g. ``91 GiB of 80, most of it optimizer``; empty if it fits with margin."""
        if self.impossible:
            return self.impossible
        if self.safe:
            return ""
        if self.fits:
            return (
                f"{self.bytes / GIB:.1f} GiB of {self.card / GIB:.1f}: fits, but with less than the"
                " safety margin"
            )
        terms = self.peak.to_json()
        most = max(terms, key=lambda name: terms[name])
        return (
            f"{self.bytes / GIB:.0f} GiB of {self.card / GIB:.0f}, most of it {most.replace('_', ' ')}"
            f" ({terms[most] * self.memory_factor / GIB:.0f})"
        )


def layouts() -> tuple[StrategyLayout, ...]:
    """Return all strategies' layouts, without pp and tp first, then by startup, offload and ZeRO stage."""
    every = [layout for spec in strategy_specs() for layout in spec.layouts()]
    return tuple(
        sorted(
            every,
            key=lambda a: (
                a.pp,
                a.tp,
                not (a.start is not None and a.start.on_card),
                a.offload != "none",
                a.zero,
            ),
        )
    )


def search(spec: SearchSpec) -> list[Candidate]:
    """Return all candidates. Raises ConfigError if no layout divides the rows of a step evenly."""
    candidates = [candidate for layout in layouts() for candidate in layout_candidates(layout, spec)]
    if not candidates:
        raise ConfigError(_no_layout(spec))
    return candidates


def best_of_each(candidates: list[Candidate]) -> list[Candidate]:
    """Return each strategy's fastest layout that fits, or the one closest to fitting."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        previous = best.get(candidate.strategy)
        if previous is None or _rank(candidate) > _rank(previous):
            best[candidate.strategy] = candidate
    return list(best.values())


def fastest(candidates: list[Candidate]) -> Candidate | None:
    """Return the fastest candidate that fits; None if none does."""
    return next(iter(ranked(candidates)), None)


def ranked(candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates that fit, fastest first; near-equal ones: replicated first, then small."""
    fitting = sorted((c for c in candidates if c.safe), key=_rank, reverse=True)
    # A prediction does not tell layouts within 1 % apart, so simplicity decides.
    tied = [c for c in fitting if c.step <= fitting[0].step * (1 + TIE)]
    return [*sorted(tied, key=lambda c: (not c.layout.whole_copies, c.bytes)), *fitting[len(tied) :]]


def _rank(candidate: Candidate) -> tuple[bool, float, float]:
    """Sort key: fitting layouts by speed, then less memory; after them the others by memory."""
    if candidate.safe:
        # Rounded, so that equal speeds are equal whatever the order of their terms.
        return True, round(candidate.work.step_tokens / candidate.step, 3), -candidate.bytes
    return False, -candidate.bytes if not candidate.impossible else float("-inf"), 0.0


def layout_candidates(layout: StrategyLayout, spec: SearchSpec) -> Iterator[Candidate]:
    """Yield candidates of one layout over meshes, micro-batches and recomputation."""
    cards, node = spec.cluster.cards, spec.cluster.machine.node
    if spec.adapter is not None and (
        layout.tp or layout.pp or layout.cp or (spec.adapter.base_bytes < 2 and not layout.packed)
    ):
        return  # adapters need unsharded matrices and rows; 4-bit bases need a layout that supports them
    if not spec.states.allows(layout) or (
        layout.offload != "none" and cards < strategy_spec(layout.strategy).min_processes
    ):
        return
    for tp, pp, cp in product(
        _tp_sizes(spec.shape, node, layout.autotp) if layout.tp else (1,),
        _pp_sizes(spec.shape, cards) if layout.pp else (1,),
        _cp_sizes(spec) if layout.cp else (1,),
    ):
        if cards % (tp * pp * cp) or (layout.tp and tp == 1) or (layout.pp and pp == 1):
            continue
        # The other cards are data-parallel. One card shards nothing, but may offload.
        dp = cards // (tp * pp * cp)
        if spec.rows % dp or (layout.zero and dp * cp == 1 and (layout.offload == "none" or pp > 1)):
            continue
        for shard in _shard_sizes(dp, max(1, node // tp)) if layout.hybrid else (dp,):
            yield from _batches(
                layout, spec, Mesh(pp=pp, dp_replicate=dp // shard, dp_shard=shard, cp=cp, tp=tp)
            )


def _batches(layout: StrategyLayout, spec: SearchSpec, mesh: Mesh) -> Iterator[Candidate]:
    dp = mesh.data_parallel_size
    rows = spec.rows // dp
    for micro in (m for m in MICRO_BATCHES if rows % m == 0):
        for recompute in ("none", "full"):
            work = StepSpec(
                shape=spec.shape,
                machine=spec.cluster.machine,
                seq_len=spec.seq_len,
                micro_batch=micro,
                accumulation=rows // micro,
                dp=dp,
                tp=mesh.tp,
                pp=mesh.pp,
                cp=mesh.cp,
                zero=layout.zero,
                shard=(mesh.dp_shard if layout.hybrid else dp) * mesh.cp,
                storage=spec.states.storage(layout),
                gathering=layout.gathering,
                recompute=recompute,
                flash=spec.flash,
                scores=spec.scores,
                adapter=spec.adapter,
                offload=layout.offload,
                offloaded=layout.offloaded,
                sequence_parallel=layout.sequence_parallel and spec.shape.shards_tokens,
                algorithm=spec.algorithm,
                kernels=own_kernels(spec, mesh.tp, layout.whole_submodules),
                saves=spec.shape.family.saves or 1.0,
                rollout=decoded(spec.rollout, layout, mesh.tp),
                orthogonal=spec.orthogonal,
                frozen_size=spec.frozen_size,
                trained_part=spec.trained_part,
                further_forwards=spec.further_forwards,
                picture=spec.picture,
                start=start_of(
                    layout.start,
                    [spec.shape],
                    _quantised(spec.adapter),
                    (spec.adapter is not None and spec.adapter.decomposed),
                ),
                master=2.0 if spec.states.bf16_weights else 4.0,
            )
            replicated = layout.zero == 0
            shown = replace(mesh, dp_replicate=dp, dp_shard=1) if replicated else mesh
            yield predicted(layout, work, shown, spec)


def predicted(layout: StrategyLayout, work: StepSpec, mesh: Mesh, spec: SearchSpec) -> Candidate:
    """Predict memory and step time of one layout."""
    stage, peak = worst_peak(work, memory_coefficients(work.system))
    memory_factor, time_factor = spec.corrections
    impossible = why_not_run(work) or why_not_start(work)
    impossible = impossible or ("" if spec.nvme else why_not_offload(work))
    return Candidate(
        layout,
        work,
        mesh,
        peak,
        stage,
        speed_of(work, speed_coefficients(work.system)),
        MARGIN * work.machine.memory,
        memory_factor,
        time_factor,
        impossible,
    )


def _quantised(adapter: AdapterSize | None) -> bool:
    return adapter is not None and adapter.base_bytes < 2


def start_bytes(work: StepSpec) -> tuple[float, float]:
    """Return (bytes of the whole model on a card, bytes of a node's host memory) while the models are built.

    0 on the card if nothing is whole there, or if it arrives in its final form (counted with the states).
    """
    if work.start is None:
        return 0.0, 0.0
    count = work.shape.num_parameters
    stored = work.shape.stored
    model_bytes, read = work.master * count, (SIZES[stored] if stored else work.master) * count
    share = work.sharers if work.zero == 3 else 1
    kept = work.storage.weight * count / share if work.offload != "all" else 0.0
    first = Held(model_bytes, kept, 0.0, read)
    models = [first] * (1 + work.trained_models) + [
        Held(
            model_bytes * work.frozen_size,
            2.0 * count * work.frozen_size / share,
            0.0,
            read * work.frozen_size,
        )
    ] * work.frozen_models
    whole_there = work.machine.context and work.start.on_card and not work.start.arrives
    on_card = card_peak(work.start, models) if whole_there else 0.0
    return on_card, host_peak(work.start, models, min(work.machine.node, work.world))


def why_not_start(work: StepSpec) -> str:
    """Return why the whole model cannot be held at startup, on a card or in host memory; else empty."""
    if work.start is None:
        return ""
    on_card, on_host = start_bytes(work)
    others = work.trained_models + work.frozen_models
    many = f" ({1 + others} models)" if others else ""
    if on_card > work.machine.memory:
        return (
            f"cannot start: {on_card / GIB:.0f} GiB of {work.machine.memory / GIB:.0f}, complete on"
            f" each device{many}"
        )
    room = work.machine.host_memory
    if room and on_host > room:
        readers = work.start.readers(min(work.machine.node, work.world))
        return (
            f"cannot start: {on_host / GIB:.0f} GiB of {room / GIB:.0f} of a host, complete in"
            f" {readers} of its processes{many}"
        )
    return ""


def why_not_offload(work: StepSpec) -> str:
    """Return why a node's memory cannot hold what is offloaded, or what is assumed of it; else empty."""
    known, assumed = work.machine.host_memory, work.machine.assumed_host
    room, need = known or assumed, host_bytes(work)
    if not room or need <= room:
        return ""
    return f"host memory {need / GIB:,.0f} GiB of {room / GIB:,.0f}{'' if known else ' assumed'}"


def host_bytes(work: StepSpec) -> float:
    """Return a node's bytes of offloaded optimizer states (with ``all`` also weights and gradients)."""
    if work.offload == "none":
        return 0.0
    parameters = work.stage_parameters(work.stages[0]) * work.tp
    frozen = frozen_bytes(work, parameters) if work.offload == "all" else 0.0
    if work.adapter is not None:
        parameters = float(work.adapter.trained)
    per = work.storage.optimizer * work.offloaded + (
        work.storage.weight + work.storage.gradient if work.offload == "all" else 0.0
    )
    return (parameters * per + frozen) * min(work.machine.node, work.world) / work.sharers


def decoded(rollout: RolloutSpec | None, layout: StrategyLayout, tp: int) -> RolloutSpec | None:
    """Return ``rollout`` as this layout decodes: in a captured graph only if the model is not sharded."""
    unsharded = strategy_spec(layout.strategy).whole_modules and tp == 1
    return rollout if rollout is None or unsharded else replace(rollout, captured=False)


def own_kernels(spec: SearchSpec, tp: int, whole_submodules: bool) -> str:
    """Return the name of Paceline's kernels that run: fused projections and gates need unsharded submodules;
    the head computes in chunks in every family.
    """
    shape = spec.shape
    if whole_submodules and tp == 1 and not spec.adapter and not shape.experts and shape.family.saves:
        return "fused"
    return "norms" if shape.family.fused_norms else "head"


def _tp_sizes(shape: ModelShape, node: int, autotp: bool) -> list[int]:
    """Return the tp sizes in a node that divide heads, KV heads and the MLP's width, or the experts, which
    ranks hold whole. Return none for families without a plan, and with ``autotp`` for those that AutoTP does
    not follow.
    """
    family = shape.family
    if not family.tensor_plan or (autotp and (shape.experts or not family.autotp)):
        return []
    parts = shape.experts or shape.intermediate
    return [t for t in divisors(node) if not any(n % t for n in (shape.heads, shape.kv_heads, parts))]


def _cp_sizes(spec: SearchSpec) -> list[int]:
    """Return cp sizes in a node and of whole nodes that divide the heads (Ulysses), for packed rows and
    token-sum losses.
    """
    if not algorithm_spec(spec.algorithm).sums_tokens or not spec.shape.family.fused_norms:
        return []
    heads, node = spec.shape.heads, spec.cluster.machine.node
    return [
        c
        for c in divisors(heads)
        if c > 1 and spec.cluster.cards % c == 0 and (node % c == 0 or c % node == 0)
    ]


def _shard_sizes(dp: int, inside: int) -> list[int]:
    """Return sizes of groups that shard while their replicas do not: the ``inside`` ranks of a node, or of
    several nodes, but not all.
    """
    return [] if dp % inside else [inside * n for n in divisors(dp // inside)[:-1] if inside * n > 1]


def _pp_sizes(shape: ModelShape, cards: int) -> list[int]:
    if not shape.family.stages:
        return [1]
    return [p for p in divisors(cards) if p <= shape.layers and (p <= 16 or p % 8 == 0)]


def near_rows(spec: SearchSpec) -> list[int]:
    """Return the nearest numbers of rows per step that divide evenly over all cards."""
    cards = spec.cluster.cards
    lower = max(1, spec.rows // cards) * cards
    return sorted({lower, lower + cards})


def _no_layout(spec: SearchSpec) -> Diagnostic:
    cards, near = spec.cluster.cards, near_rows(spec)
    return codes.PLAN_ROWS_CARDS(
        "--rows", str(spec.rows), rows=spec.rows, cards=cards, hint=" or ".join(map(str, near))
    )
