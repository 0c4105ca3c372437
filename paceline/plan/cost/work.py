"""What is predicted: one model trained in one layout on one kind of machine. Numbers only, so that a search may make thousands of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from paceline.plan.algorithms.base import AlgorithmSpec, algorithm_spec
from paceline.plan.cost.layout import Storage
from paceline.plan.cost.pieces import layer_ranges
from paceline.plan.cost.starts import LoadingSpec
from paceline.plan.model.read_shape import ModelShape

UNGATED = ("gpt2", "gpt_neox", "phi", "opt", "mpt")  # feed-forward of two matrices; all others have gate, up and down


@dataclass(frozen=True)
class Machine:
    """One accelerator and what joins it to the others. Bandwidths are bytes a second, one way, for one accelerator."""

    name: str
    memory: float
    flops: float  # dense 16-bit tensor peak, fp32 accumulation
    hbm: float
    node: int  # accelerators a node
    inside: float  # to the others of its node
    outside: float  # to other nodes
    reached: float = 0.0  # the largest matrix product that anybody measured; 0: 0.8 of ``flops``
    host: float = 25e9  # to the host's memory
    host_memory: float = 0.0  # of a node; 0: unknown
    context: bool = True  # whether a driver and its communicators take a part of ``memory``


class StageSize(NamedTuple):
    """One pipeline stage: how many decoder layers, and whether it has the embedding and the head."""

    layers: int
    embedding: bool
    head: bool


@dataclass(frozen=True)
class AdapterSize:
    """LoRA: trained parameters beside frozen linear weights of ``base_bytes`` each (2; for 4 bit about half of one, with scales)."""

    parameters: int
    base_bytes: float = 2.0
    full_modules: int = 0  # parameters of embedding and head trained whole
    end_bytes: float = 2.0  # of embedding, head and norms; 4 where they are raised to fp32 beside packed layers


@dataclass(frozen=True)
class RolloutSpec:
    """What is answered before it is learnt from: ``answer`` tokens each, in ``windows`` optimizer steps a pass, ``passes`` times; ``rows`` at a time."""

    answer: int
    windows: int = 1
    passes: int = 1
    rows: int = 64


@dataclass(frozen=True)
class StepSpec:
    """One training step. ``dp`` ranks see different rows; ``shard`` of them share the states that ``zero`` (0 to 3) shares out.

    ``recompute``: none, selective (matrix products and attention kept), or full. ``fused_loss``: logits are never whole.
    ``system`` names the set of coefficients. ``kernels``: eager (a block's every elementwise result is kept), norms, or fused (Paceline's own:
    ``models.norms``, ``models.qkv``, ``models.swiglu`` keep inputs, q, k, v and the two halves of the gate only).
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
    recompute: str = "none"
    flash: bool = True
    fused_loss: bool = False
    compiled: bool = False
    sequence_parallel: bool = True
    stages_a_rank: int = 1
    adapter: AdapterSize | None = None
    offload: str = "none"  # none, optimizer, all
    cut_by_cost: bool = False
    low_precision: str = ""  # fp8, or empty
    system: str = "paceline"
    prefetch: bool = True
    algorithm: str = "sft"
    kernels: str = "eager"
    ring: bool = False  # context parallel passes keys and values on behind the products; else Ulysses
    element: float = 2.0  # bytes of an activation's number
    rollout: RolloutSpec | None = None  # None: answers of half a row, one step on each
    start: LoadingSpec | None = None  # None: not looked at
    frozen_size: float = 1.0  # parameters of a frozen model over those of the first
    master: float = 4.0  # bytes a parameter of the whole model that a start holds

    @cached_property
    def world(self) -> int:
        """All ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank (its share of the sequence under context parallel)."""
        return self.seq_len * self.micro_batch * self.sequences // self.cp

    @cached_property
    def spec(self) -> AlgorithmSpec:
        """What is learnt."""
        return algorithm_spec(self.algorithm)

    @property
    def sequences(self) -> int:
        """Sequences of a row."""
        return self.spec.documents_a_row

    @property
    def frozen_models(self) -> int:
        """Models beside the first that are only run; a reference is the trained model with its adapter off, where there is one."""
        frozen = self.spec.frozen_beside
        return frozen - 1 if self.adapter and frozen and "reference" in self.spec.named else frozen

    @property
    def forwards_beside(self) -> float:
        """Forwards without a backward over all rows of a step, in those of the first model."""
        return self.frozen_models * self.frozen_size + self.spec.further_forwards

    @property
    def trained_models(self) -> int:
        """Models trained beside the first."""
        return self.spec.trained_beside

    @cached_property
    def step_tokens(self) -> int:
        """Tokens of an optimizer step over all ranks."""
        return self.seq_len * self.micro_batch * self.sequences * self.accumulation * self.dp

    @cached_property
    def sharers(self) -> int:
        """Ranks that share one copy of what ``zero`` shares out."""
        return self.shard or self.dp * self.cp

    @cached_property
    def gated(self) -> bool:
        return self.shape.model_type not in UNGATED

    @cached_property
    def parallel_residual(self) -> bool:
        """Whether attention and feed-forward share one residual and nearly one norm."""
        return self.shape.model_type in ("gpt_neox", "phi")

    @cached_property
    def embedding_parameters(self) -> int:
        return self.shape.vocab * self.shape.hidden_size

    @cached_property
    def kv_width(self) -> int:
        """Width of keys (and of values) as attention has them: under Ulysses repeated as few times as let every rank have a head."""
        heads, of = self.shape.kv_heads, 1 if self.ring else self.cp
        if heads % of:
            heads = of if of % heads == 0 else self.shape.heads
        return heads * self.shape.head_dim

    @cached_property
    def layer_parameters(self) -> float:
        """Of one decoder layer (of all its experts); final norm and learnt positions are spread over the layers."""
        outside = self.embedding_parameters * (1 if self.shape.tied else 2)
        return (self.shape.num_parameters - outside) / self.shape.layers

    @cached_property
    def layer_matmul(self) -> float:
        """Parameters of a layer that a token is multiplied with."""
        return (self.shape.matmul_parameters - self.embedding_parameters) / self.shape.layers

    @cached_property
    def stages(self) -> Sequence[StageSize]:
        """What each of the ``pp`` ranks of a row holds."""
        return cut_by_cost(self) if self.cut_by_cost else even_cut(self)

    @cached_property
    def stage_kinds(self) -> Sequence[StageSize]:
        """One stage of every kind: those of a long pipeline are mostly equal."""
        return list(dict.fromkeys(StageSize(stage.layers, False, stage.head) for stage in self.stages))

    @cached_property
    def largest_stage(self) -> float:
        """Parameters of the stage that has most, on one tensor-parallel rank."""
        return max(self.stage_parameters(stage) for stage in self.stages)

    def stage_parameters(self, stage: StageSize) -> float:
        """Whole parameters of a stage on one tensor-parallel rank. A tied embedding is held by both ends of a pipeline."""
        ends = int(stage.embedding) + int(stage.head)
        if ends == 2 and self.shape.tied:
            ends = 1
        return (stage.layers * self.layer_parameters + ends * self.embedding_parameters) / self.tp


def why_not_run(work: StepSpec) -> str:
    """Why a pipeline of this form cannot run, or nothing: a stage needs something to hold, the warm-up of 1F1B a micro-batch a later stage."""
    if work.pp == 1:
        return ""
    if work.pp * work.stages_a_rank > work.shape.layers and not work.cut_by_cost:
        return f"{work.pp * work.stages_a_rank} stages for {work.shape.layers} layers"
    head_at = next(place for place, stage in enumerate(work.stages) if stage.head)
    if head_at < work.pp - 2:
        return f"{work.pp - 2 - head_at} stages would hold nothing"
    if work.accumulation < work.pp - 1:
        return f"{work.accumulation} micro-batches for {work.pp} stages"
    return ""


def even_cut(work: StepSpec) -> list[StageSize]:
    """As ``models.stages`` cuts a pipeline: equal numbers of layers, what is left over to the middle."""
    ranges = layer_ranges(work.shape.layers, work.pp)
    return [StageSize(len(r), i == 0, i == work.pp - 1) for i, r in enumerate(ranges)]


def cut_by_cost(work: StepSpec) -> list[StageSize]:
    """nanotron's cut: blocks go to a stage until its share of all products is passed; the head counts as its matrix."""
    each, head = work.layer_matmul, float(work.embedding_parameters)
    total = work.shape.layers * each + head
    counts, place, done, head_at = [0] * work.pp, 0, 0.0, work.pp - 1
    for block in range(work.shape.layers + 1):
        at = min(place, work.pp - 1)
        is_head = block == work.shape.layers
        done += head if is_head else each
        if is_head:
            head_at = at
        else:
            counts[at] += 1
        if done > total * (place + 1) / work.pp * (1 + 1e-12):
            place += 1
    return [StageSize(count, i == 0, i == head_at) for i, count in enumerate(counts)]
