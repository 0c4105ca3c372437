"""The cost model's input: one model trained in one layout on one machine, in numbers only.

It is cheap to construct, since a search makes thousands of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from paceline.plan.algorithms.spec import AlgorithmSpec, algorithm_spec
from paceline.plan.features.freezing import TrainedPart
from paceline.plan.model.shape import ModelShape
from paceline.plan.workload.local_tensors import Orthogonal, layer_ranges
from paceline.plan.workload.startup_memory import CARD, LoadingSpec


@dataclass(frozen=True)
class Storage:
    """Bytes per parameter between steps: weights, gradients, optimizer state.

    ``optimizer``: moments, and fp32 masters if they are separate. ``sent``: bytes per weight that the rank
    which updated it sends to the others, after a full gradient all-reduce (``ZeroRedundancyOptimizer``); 0:
    communication as in ZeRO. ``anew``: a window begins without gradients; else their buffers last.
    """

    weight: float = 2.0
    gradient: float = 4.0
    optimizer: float = 12.0
    sent: float = 0.0
    anew: bool = False


@dataclass(frozen=True)
class Gathering:
    """How sharded weights are gathered for a micro-batch.

    ``reshards``: a layer's weights are freed after its forward and gathered again for its backward; else all
    of them stay. ``one_unit``: the whole model is gathered at once. ``whole_gradients``: up to these bytes
    (fp32) a rank sums unsharded gradients over a window's micro-batches. ``ends_apart``: embedding and head
    are units of their own, which are freed after use (another program's; Paceline's are FSDP's root unit).
    """

    reshards: bool = True
    one_unit: bool = False
    whole_gradients: int = 0
    ends_apart: bool = False

    @property
    def keeps_all(self) -> bool:
        """Whether all weights are gathered when the backward begins."""
        return self.one_unit or not self.reshards


WHOLE = Storage(weight=6.0, gradient=4.0, optimizer=8.0, anew=True)  # fp32 weights plus 16-bit copies


@dataclass(frozen=True)
class StrategyLayout:
    """One layout of a strategy, shown as ``name`` in tables and started by ``strategy``.

    ``zero``: ZeRO stage (0 to 3), i.e. which states are sharded. ``tp``, ``pp``, ``cp``: search these mesh
    axes. ``hybrid``: shard within a node and replicate across nodes. ``offload``: none, optimizer or all;
    ``offloaded``: the offloaded share of the optimizer states (ZeRO-Offload++).
    ``start``: where the whole model is held at startup (None: not checked). ``packed``: supports 4-bit base
    weights. ``whole_submodules``: a rank computes with unsharded submodules, so kernels fused over several
    matrices run. ``autotp``: DeepSpeed shards by tensors, by column and row only.
    """

    name: str
    strategy: str
    zero: int = 0
    storage: Storage = WHOLE
    tp: bool = False
    pp: bool = False
    cp: bool = False
    hybrid: bool = False
    offload: str = "none"
    offloaded: float = 1.0
    start: LoadingSpec | None = CARD
    packed: bool = False
    whole_submodules: bool = True
    sequence_parallel: bool = True
    stages_a_rank: int = 1
    autotp: bool = False
    gathering: Gathering = Gathering()

    @property
    def whole_copies(self) -> bool:
        """Whether every rank holds the whole model."""
        return self.zero == 0 and not self.pp


#: Share of the data sheet's peak that FlashAttention 2 reaches on Ampere (arXiv:2307.08691: 190 to 230 of
#: 312 TFLOP/s), and on later cards, for which it was not written (arXiv:2407.08608: 35 % of an H100).
ATTENTION_SHARE, ATTENTION_SHARE_LATER = 0.6, 0.35


@dataclass(frozen=True)
class Machine:
    """One accelerator and its links. Bandwidths are bytes per second, one way, per accelerator."""

    name: str
    memory: float
    flops: float  # dense 16-bit tensor peak, fp32 accumulation
    hbm: float
    node: int  # accelerators per node
    inside: float  # bandwidth to others in the node
    outside: float  # bandwidth to other nodes
    reached: float = 0.0  # FLOP/s of the fastest measured matmul; 0: 0.8 of ``flops``
    host: float = 25e9  # bandwidth to host memory
    host_memory: float = 0.0  # bytes per node; 0: unknown
    assumed_host: float = 0.0  # what it is taken for by offload if unknown; 0: for enough
    context: bool = True  # whether a CUDA context and communicators use part of ``memory``
    attention: float = ATTENTION_SHARE  # share of ``flops`` that FlashAttention 2 reaches
    domain: int = 0  # accelerators that ``inside`` links, where these are more than a node's; 0: a node's

    @property
    def linked(self) -> int:
        """Number of accelerators that ``inside`` links."""
        return max(self.node, self.domain)


class StageSize(NamedTuple):
    """One pipeline stage: number of decoder layers, and whether it has the embedding and the head."""

    layers: int
    embedding: bool
    head: bool


@dataclass(frozen=True)
class AdapterSize:
    """LoRA: trained parameters, and bytes per frozen linear weight (2; 4 bit: about 0.5 with scales)."""

    parameters: int
    base_bytes: float = 2.0
    full_modules: int = 0  # parameters of embedding, head and others trained in full
    end_bytes: float = 2.0  # per weight of embedding, head and norms; 4 if upcast to fp32 (4-bit base)
    decomposed: bool = False  # it begins with a part of each weight
    rescaled: float = 0.0  # outputs that each layer keeps, as its adapter learns their scale (DoRA: 2)

    @property
    def trained(self) -> int:
        """All trained parameters."""
        return self.parameters + self.full_modules


@dataclass(frozen=True)
class RolloutSpec:
    """A rollout: ``answer`` tokens per answer, used for ``windows`` optimizer steps × ``passes`` epochs.

    - ``rows``: rows generated at a time
    - ``share``: of all rows, those whose answer the model generates
    - ``captured``: a step of decoding is one graph of kernels
    """

    answer: int
    windows: int = 1
    passes: int = 1
    rows: int = 64
    share: float = 1.0
    captured: bool = False


@dataclass(frozen=True)
class PictureWork:
    """A picture's part in a step. Rows count as one picture each.

    - ``saved``: bytes that its backward keeps
    - ``pixels``: bytes of its pixels
    - ``flops``: of all passes
    """

    saved: float
    pixels: float
    flops: float


#: of ``StepSpec.kernels``: those by which a layer saves less than its class does
OWN_LAYERS = frozenset({"norms", "fused"})


@dataclass(frozen=True)
class StepSpec:
    """One training step. ``dp``: data-parallel ranks; ``shard``: ranks that share what ``zero`` shards.

    - ``zero``: ZeRO stage, 0 to 3
    - ``recompute``: none, selective (keeps matmul and attention outputs, or what ``keeps`` names), or full
    - ``fused_loss``: logits are never materialized
    - ``system``: whose coefficients to use
    - ``fused``: another program's kernels are fused (Transformer Engine, flash-attn's layers)
    - ``kernels``: eager (another system's: every elementwise result of a block is saved, and all logits),
      head (Paceline's ``models.heads`` computes logits in chunks, in every family), norms, or fused (its
      ``models.fused_layers.rms_norm``, ``models.fused_layers.qkv_rotary``, ``models.fused_layers.swiglu``
      save only inputs, q, k, v and the two halves of the gate)
    - ``saves``: bytes that a layer with fused kernels saves beyond a Llama layer of its sizes
    """

    shape: ModelShape
    machine: Machine
    seq_len: int
    micro_batch: int
    accumulation: int = 1
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    zero: int = 0
    shard: int = 0
    storage: Storage = Storage()
    gathering: Gathering = Gathering()
    recompute: str = "none"
    keeps: tuple[str, ...] = ()
    flash: bool = True
    scores: bool = False  # all scores of a document are kept (``kernels.keeps_scores``)
    fused_loss: bool = False
    half_loss: bool = False  # logits and loss stay in 16 bits, as without autocast
    compiled: bool = False
    sequence_parallel: bool = True
    stages_a_rank: int = 1
    adapter: AdapterSize | None = None
    offload: str = "none"  # none, optimizer, all
    offloaded: float = 1.0  # of the optimizer states, the share on the host
    cut_by_cost: bool = False
    low_precision: str = ""  # fp8, or empty
    orthogonal: Orthogonal | None = None  # Muon's matrices
    system: str = "paceline"
    fused: bool = False  # the program fuses norms and gates, and has its card's own attention kernel
    prefetch: bool = True
    algorithm: str = "sft"
    kernels: str = "eager"
    saves: float = 1.0
    ring: bool = False  # ring attention (keys and values overlap with compute); else Ulysses
    element: float = 2.0  # bytes per activation element
    rollout: RolloutSpec | None = None  # None: answers of half a row, one step per rollout
    start: LoadingSpec | None = None  # None: not checked
    frozen_size: float = 1.0  # parameters of a frozen model / those of the main model
    trained_part: TrainedPart = TrainedPart()  # of the main model
    further_forwards: int | None = None  # None: as the algorithm's spec says
    master: float = 4.0  # bytes per parameter of the whole model held at startup
    picture: PictureWork | None = None  # None: rows without images
    outgrown: float = 0.0  # of what moves, kept in cached blocks that longer rows outgrew; expandable: none

    @cached_property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank (its share of the sequence under context parallelism)."""
        return self.seq_len * self.micro_batch * self.sequences // self.cp

    @cached_property
    def spec(self) -> AlgorithmSpec:
        """The algorithm's spec."""
        return algorithm_spec(self.algorithm)

    @property
    def answers(self) -> RolloutSpec | None:
        """The generation of answers in training; None if all answers come from the data."""
        return self.rollout or (RolloutSpec(self.seq_len // 2) if self.spec.on_policy else None)

    @property
    def pictures(self) -> int:
        """Pictures of a micro-batch."""
        return self.micro_batch * self.sequences

    @property
    def sequences(self) -> int:
        """Sequences per row."""
        return self.spec.documents_a_row

    @property
    def frozen_models(self) -> int:
        """Number of frozen models run besides the main one.

        With an adapter the reference is the trained model with its adapter disabled, and is not counted.
        """
        frozen = self.spec.frozen_beside
        return frozen - 1 if self.adapter and frozen and "reference" in self.spec.named else frozen

    @property
    def forwards_beside(self) -> float:
        """Forwards without backward per row of a step, in units of the main model's forward.

        A reference that is the trained model with its adapter disabled is one more forward of that model.
        """
        further = self.spec.further_forwards if self.further_forwards is None else self.further_forwards
        adapter_references = self.spec.frozen_beside - self.frozen_models
        return self.frozen_models * self.frozen_size + adapter_references + further

    @property
    def trained_models(self) -> int:
        """Number of models trained besides the main one."""
        return self.spec.trained_beside

    @cached_property
    def step_tokens(self) -> int:
        """Tokens per optimizer step over all ranks."""
        return self.seq_len * self.micro_batch * self.sequences * self.accumulation * self.dp

    @cached_property
    def sharers(self) -> int:
        """Number of ranks that share one copy of the states that ``zero`` shards."""
        return self.shard or self.dp * self.cp

    @cached_property
    def embedding_parameters(self) -> int:
        return self.shape.vocab * self.shape.hidden_size

    @property
    def fuses(self) -> bool:
        """Whether elementwise kernels are fused: compiled, or written as one kernel."""
        return self.compiled or self.fused or self.kernels in OWN_LAYERS

    @cached_property
    def kv_width(self) -> int:
        """Width of keys (and of values) in attention; under Ulysses repeated until every rank has a head."""
        heads, of = self.shape.kv_heads, 1 if self.ring else self.cp
        if heads % of:
            heads = of if of % heads == 0 else self.shape.heads
        return heads * self.shape.head_dim

    @cached_property
    def layer_parameters(self) -> float:
        """Parameters per decoder layer, all experts included.

        Final norm and learned positions are spread over the layers.
        """
        outside = self.embedding_parameters * (1 if self.shape.tied else 2)
        return (self.shape.num_parameters - outside) / self.shape.layers

    @cached_property
    def layer_matmul(self) -> float:
        """Matmul parameters per token and layer."""
        return (self.shape.matmul_parameters - self.embedding_parameters) / self.shape.layers

    @cached_property
    def stages(self) -> Sequence[StageSize]:
        """The pipeline stages, one per pipeline rank."""
        return cut_by_cost(self) if self.cut_by_cost else even_cut(self)

    @cached_property
    def stage_kinds(self) -> Sequence[StageSize]:
        """The distinct stages: most stages of a long pipeline are equal."""
        return list(dict.fromkeys(StageSize(stage.layers, False, stage.head) for stage in self.stages))

    @cached_property
    def largest_stage(self) -> float:
        """Parameters of the largest stage on one tensor-parallel rank."""
        return max(self.stage_parameters(stage) for stage in self.stages)

    def stage_parameters(self, stage: StageSize) -> float:
        """Return the unsharded parameters of a stage on one tensor-parallel rank.

        A tied embedding is held by both ends of a pipeline.
        """
        ends = int(stage.embedding) + int(stage.head)
        if ends == 2 and self.shape.tied:
            ends = 1
        return (stage.layers * self.layer_parameters + ends * self.embedding_parameters) / self.tp


def why_not_run(work: StepSpec) -> str:
    """Return why this pipeline cannot run, or an empty string.

    Every stage must hold a layer, embedding or head, and 1F1B's warm-up needs a micro-batch per later stage.
    """
    if work.pp == 1:
        return ""
    if work.pp * work.stages_a_rank > work.shape.layers and not work.cut_by_cost:
        return f"{work.pp * work.stages_a_rank} stages for {work.shape.layers} layers"
    head_at = next(index for index, stage in enumerate(work.stages) if stage.head)
    if head_at < work.pp - 2:
        return f"{work.pp - 2 - head_at} stages would be empty"
    if work.accumulation < work.pp - 1:
        return f"{work.accumulation} micro-batches for {work.pp} stages"
    return ""


def even_cut(work: StepSpec) -> list[StageSize]:
    """Split layers evenly as ``models.parallel.pipeline_stages`` does; leftover layers go to the middle
    stages.
    """
    ranges = layer_ranges(work.shape.layers, work.pp)
    return [StageSize(len(r), i == 0, i == work.pp - 1) for i, r in enumerate(ranges)]


def cut_by_cost(work: StepSpec) -> list[StageSize]:
    """Split layers by cost as nanotron does: fill a stage until its share of matmul parameters is exceeded.

    The head counts as its matrix.
    """
    each, head = work.layer_matmul, float(work.embedding_parameters)
    total = work.shape.layers * each + head
    counts, stage, done, head_at = [0] * work.pp, 0, 0.0, work.pp - 1
    for block in range(work.shape.layers + 1):
        index = min(stage, work.pp - 1)
        is_head = block == work.shape.layers
        done += head if is_head else each
        if is_head:
            head_at = index
        else:
            counts[index] += 1
        if done > total * (stage + 1) / work.pp * (1 + 1e-12):
            stage += 1
    return [StageSize(count, i == 0, i == head_at) for i, count in enumerate(counts)]
