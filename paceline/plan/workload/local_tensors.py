"""The model's tensors on one rank (adapters, stages and tp applied), and the bytes of their states there."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from paceline.config.registries.optimizer_bytes import one
from paceline.config.registries.optimizer_bytes import projected as of_projection
from paceline.config.registries.optimizers import BUILT
from paceline.core.safetensors_header import STORED_DTYPES
from paceline.plan.features.experts import expert_factors, is_adapted
from paceline.plan.features.freezing import ALL_TRAINED, Freezing
from paceline.plan.features.peft_settings import is_saved, is_target, rank_of, rotated
from paceline.plan.mesh import Mesh
from paceline.plan.model.family import beside_text
from paceline.plan.model.parameter_list import (
    MAGNITUDE,
    Parameter,
    is_linear,
    is_transposed,
    orthogonalised,
    parameters_of,
    projected,
)
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec, ModelStates, OptimizerSpec, Plan
from paceline.plan.strategy_options import PipelineOptions

# Column-wise (dim 0), row-wise (dim 1) modules in Transformers 5.23's ``base_model_tp_plan``, by last name.
_COLWISE = frozenset(
    {
        "q_proj",
        "k_proj",
        "v_proj",
        "gate_proj",
        "up_proj",
        "qkv_proj",
        "gate_up_proj",
        "fc1",
        "query_key_value",
        "dense_h_to_4h",
    }
)
_ROWWISE = frozenset({"o_proj", "down_proj", "dense", "fc2", "dense_4h_to_h"})
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
_NORM = re.compile(r"norm|ln_[12f]\b|ln_f", re.IGNORECASE)
_LAYERS = 10**6  # more than any model has
_VOCABULARY = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "lm_head.weight", "lm_head.bias")


@dataclass(frozen=True)
class LocalTensor:
    """One tensor. ``trained``: has a gradient; ``decays``: has weight decay; ``size``: bytes per element;
    ``exact``: frozen, with more bits than its low-precision copy, so both are kept. ``scores``: belongs to a
    classification head beside the trunk.
    """

    name: str
    shape: tuple[int, ...]
    trained: bool
    decays: bool
    size: int
    exact: bool = False
    scores: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def has_copy(self) -> bool:
        """Whether a low-precision copy is kept, if the plan keeps any: layers and embeddings, not norms."""
        return _NORM.search(self.name) is None and not self.scores and self.size >= 4


@dataclass(frozen=True)
class StagesOfRank:
    """The pipeline stages ``own`` (of ``count`` in all) that one rank holds."""

    own: tuple[int, ...]
    count: int


def pieces_of(
    shape: ModelShape,
    adapter: AdapterSpec | None,
    master_bytes: int,
    stages: StagesOfRank | None = None,
    freezing: Freezing = ALL_TRAINED,
) -> tuple[LocalTensor, ...] | None:
    """Return all tensors of the model, or of the pipeline ``stages``, in the order of ``named_parameters()``.

    None if they cannot be listed: an adapter that trains biases.
    """
    listed = parameters_of(shape)
    if stages is not None:
        listed = _of_stages(listed, shape, stages.own, stages.count)
    if adapter is None:
        named = freezing.trained(p.name for p in parameters_of(shape)) if freezing else None
        whole = (_whole(p, freezing, master_bytes, named is None or p.name in named) for p in listed)
        return tuple(replace(t, scores=shape.family.in_head(t.name, beside_trunk=True)) for t in whole)
    if adapter.bias != "none":
        return None
    tensors: list[LocalTensor] = []
    for parameter in listed:
        module, _, leaf = parameter.name.rpartition(".")
        if is_saved(adapter, parameter.name, shape.tied and parameter.name.endswith(_EMBEDDINGS)):
            tensors.append(LocalTensor(parameter.name, parameter.shape, True, parameter.decays, master_bytes))
            continue
        if shape.scalar_head and shape.family.in_head(parameter.name):  # a new one is trained
            trained = LocalTensor(parameter.name, parameter.shape, True, parameter.decays, master_bytes)
            tensors.append(replace(trained, scores=shape.family.in_head(parameter.name, beside_trunk=True)))
            continue
        linear = is_linear(shape, parameter)
        tensors.append(_frozen(parameter, adapter, master_bytes, linear))
        if linear and is_target(adapter, module, shape.family):
            outside, inside = parameter.shape[::-1] if is_transposed(shape, parameter) else parameter.shape
            if adapter.oft_block_size:
                size = rotated(adapter, inside)
                tensors.append(LocalTensor(f"{module}.oft_R.weight", size, True, True, master_bytes))
                continue
            rank = rank_of(adapter, module)
            tensors.append(LocalTensor(f"{module}.lora_A.weight", (rank, inside), True, True, master_bytes))
            tensors.append(LocalTensor(f"{module}.lora_B.weight", (outside, rank), True, True, master_bytes))
            if adapter.use_dora:
                tensors.append(LocalTensor(f"{module}{MAGNITUDE}", (outside,), True, True, master_bytes))
        if is_adapted(parameter, adapter):
            for letter, size in zip("AB", expert_factors(parameter, adapter), strict=True):
                name = f"{module}.{leaf}.lora_{letter}.weight"  # each of peft's wrappers has its own
                tensors.append(LocalTensor(name, size, True, True, master_bytes))
    return tuple(tensors)


def _whole(parameter: Parameter, freezing: Freezing, master_bytes: int, trained: bool) -> LocalTensor:
    """Return a weight of a model without adapters."""
    exact = not trained and freezing.keeps_masters
    return LocalTensor(parameter.name, parameter.shape, trained, parameter.decays, master_bytes, exact)


def _frozen(parameter: Parameter, adapter: AdapterSpec, master_bytes: int, linear: bool) -> LocalTensor:
    """Return a base weight: unchanged, or packed to half a byte per element (scales: ``scale_bytes``)."""
    if linear and adapter.quantization:
        return LocalTensor(parameter.name, ((parameter.numel + 1) // 2, 1), False, parameter.decays, 1)
    return LocalTensor(parameter.name, parameter.shape, False, parameter.decays, master_bytes)


def scale_bytes(shape: ModelShape, adapter: AdapterSpec | None) -> int:
    """Return the bytes of a 4-bit base's quantization scales, which every rank keeps.

    As in bitsandbytes: one fp32 scale per block of 64 elements; with double quantization one byte per block
    and one fp32 scale per 256 blocks.
    """
    quantization = adapter.quantization if adapter else None
    if not quantization:
        return 0
    scales = 0
    for parameter in parameters_of(shape):
        if is_linear(shape, parameter):
            blocks = -(-parameter.numel // 64)
            scales += blocks + 4 * -(-blocks // 256) if quantization.double_quant else 4 * blocks
    return scales


def _of_stages(
    listed: tuple[Parameter, ...], shape: ModelShape, stages: tuple[int, ...], count: int
) -> tuple[Parameter, ...]:
    """Return the parameters of the stages ``stages`` of ``count``.

    A tied weight is on the first and on the last stage, as a separate tensor on each.
    """
    ranges = layer_ranges(shape.layers, count)
    layers = {layer for stage in stages for layer in ranges[stage]}
    head = next((i for i, p in enumerate(listed) if p.layer is not None), len(listed))
    first, last = listed[:head], [p for p in listed[head:] if p.layer is None]
    kept = [*(first if 0 in stages else ()), *(p for p in listed if p.layer in layers)]
    if count - 1 in stages:
        kept += last
        if shape.tied:
            kept.append(replace(first[0], name="lm_head.weight"))
    return tuple(kept)


def layer_ranges(num_layers: int, count: int) -> list[range]:
    """Return each stage's consecutive layers, as ``models.parallel.pipeline_stages`` splits them.

    Leftover layers go to the middle stages first, then to the first stage.
    """
    each, left = divmod(num_layers, count)
    order = [*range(1, count - 1), 0, count - 1] if count > 1 else [0]
    sizes = [each + (1 if stage in order[:left] else 0) for stage in range(count)]
    return [
        range(start, start + size)
        for start, size in zip([sum(sizes[:i]) for i in range(count)], sizes, strict=True)
    ]


def own_stages(engine: PipelineOptions, mesh: Mesh, pp_rank: int) -> StagesOfRank:
    """Return the stages of pipeline rank ``pp_rank``: every pp-th one, or both sides of the V (``zbv``)."""
    count = mesh.pp * engine.stages_per_rank
    stages = (
        (pp_rank, count - 1 - pp_rank) if engine.schedule == "zbv" else tuple(range(pp_rank, count, mesh.pp))
    )
    return StagesOfRank(stages, count)


def tp_share(piece: LocalTensor, tp: int, *, vocabulary: bool) -> LocalTensor:
    """Return the part of a tensor on one of ``tp`` ranks.

    Linear layers are split by columns or rows, an adapter's B with the columns and its A with the rows. A
    layer's experts are split by whole experts; embedding and head by vocabulary rows if ``vocabulary`` is
    True.
    """
    if tp == 1 or beside_text(piece.name, _LAYERS):  # every rank has the whole tower
        return piece
    module, _, leaf = piece.name.rpartition(".")
    end = module.rpartition(".")[2]
    if end in ("lora_A", "lora_B"):
        layer = module.split(".")[-2]
        split_factor = end == "lora_B" and layer in _COLWISE or end == "lora_A" and layer in _ROWWISE
        if not split_factor:
            return piece
        end = layer
    dim: int | None = None
    if len(piece.shape) == 3 and end == "experts" or end in _COLWISE:
        dim = 0
    elif end in _ROWWISE and leaf == "weight":
        dim = 1
    elif vocabulary and piece.name.endswith(_VOCABULARY):
        dim = 0
    if dim is None:
        return piece
    shape = tuple(size // tp if axis == dim else size for axis, size in enumerate(piece.shape))
    return replace(piece, shape=shape)


#: bytes of an element, by torch's name of the dtype
SIZES = {name: bits // 8 for name, bits in STORED_DTYPES.values() if name}


def sum_of(states: Sequence[ModelStates]) -> ModelStates:
    """Return the sum over several models."""
    return ModelStates(*(sum(getattr(s, f.name) for s in states) for f in fields(ModelStates)))


def whole_states(plan: Plan, pieces: Sequence[LocalTensor]) -> ModelStates:
    """Return the states of whole copies (single, ddp, data_parallel, ZeRO-0, stages that are not sharded)."""
    autocast = plan.shape is not None and plan.shape.family.autocast  # then fp32 weights alone stay
    copies = plan.memory is not None and plan.memory.copies and not autocast
    trained = [p for p in pieces if p.trained]
    return ModelStates(
        parameters=sum(p.numel * _size(p, copies) for p in pieces),
        gradients=sum(p.numel * p.size for p in trained),
        optimizer=sum(piece_moments(p, plan.optimizer) for p in trained),
        counters=sum(piece_counters(p, plan.optimizer) for p in trained),
    )


def _size(piece: LocalTensor, copies: bool) -> int:
    """Return bytes per element of a weight and its copy; of a frozen weight only the copy counts."""
    if not copies or not piece.has_copy:
        return piece.size
    return piece.size + 2 if piece.trained or piece.exact else 2


def sharded_states(plan: Plan, pieces: Sequence[LocalTensor], rank: int) -> ModelStates:
    """Return the states under FSDP2, which chunks dim 0 evenly and pads the last chunks.

    Weights and gradients are stored padded, moments are not.
    """
    ranks, index = shard_of(plan, rank)
    trained = [p for p in pieces if p.trained]
    kept = {id(p): _rows(p.shape[0], ranks, index) for p in pieces}
    return ModelStates(
        parameters=sum(p.size * _padded(p.shape, ranks) for p in pieces),
        gradients=sum(p.size * _padded(p.shape, ranks) for p in trained),
        optimizer=sum(
            piece_moments(replace(p, shape=(kept[id(p)], *p.shape[1:])), plan.optimizer) for p in trained
        ),
        counters=sum(piece_counters(p, plan.optimizer) for p in trained),
    )


def shard_of(plan: Plan, rank: int) -> tuple[int, int]:
    """Return (number of ranks that share one copy of the weights, index of ``rank`` among them).

    The ranks of a cp group shard together.
    """
    coordinates = plan.mesh.coordinates(rank)
    return plan.mesh.dp_shard * plan.mesh.cp, coordinates.dp_shard * plan.mesh.cp + coordinates.cp


def _rows(rows: int, ranks: int, index: int) -> int:
    """Return the rows of the ``index``-th chunk, as ``torch.chunk`` splits them."""
    each = -(-rows // ranks)
    return max(0, min(each, rows - each * index))


def _padded(shape: tuple[int, ...], ranks: int) -> int:
    each = -(-shape[0] // ranks)
    count = each
    for size in shape[1:]:
        count *= size
    return count


def piece_moments(piece: LocalTensor, optimizer: OptimizerSpec) -> int:
    """Return the bytes of the optimizer's states for ``piece``, from the optimizers' table."""
    if by_muon(piece, optimizer):
        return one(piece.shape, optimizer.args, piece.size)
    if by_projection(piece, optimizer):
        return of_projection(piece.shape, optimizer.args, piece.size)
    return moment_bytes(piece.shape, optimizer, piece.size)


def piece_counters(piece: LocalTensor, optimizer: OptimizerSpec) -> int:
    """Return the bytes of the step counter of ``piece``."""
    return 0 if by_muon(piece, optimizer) else counter_bytes(optimizer)


def group_of(piece: LocalTensor, optimizer: OptimizerSpec) -> int:
    """Return the parameter group of ``piece``, as ``strategies.optimizers.build`` orders them: Muon's or
    GaLore's, with weight decay, without.
    """
    return 0 if (by_muon(piece, optimizer) or by_projection(piece, optimizer)) else 1 if piece.decays else 2


def by_muon(piece: LocalTensor, optimizer: OptimizerSpec) -> bool:
    """Whether the optimizer orthogonalises ``piece``."""
    return BUILT[optimizer.name].orthogonalises and orthogonalised(piece.name, len(piece.shape))


def by_projection(piece: LocalTensor, optimizer: OptimizerSpec) -> bool:
    """Whether the optimizer projects the gradient of ``piece``."""
    return BUILT[optimizer.name].projects and projected(
        piece.name, len(piece.shape), optimizer.target_modules
    )


def moment_bytes(shape: tuple[int, ...], optimizer: OptimizerSpec, size: int) -> int:
    """Return the bytes of the optimizer's states for a tensor of ``shape``, from the optimizers' table.

    ``size``: bytes per element of the master weight.
    """
    return BUILT[optimizer.name].moment_bytes(shape, optimizer.args, size)


def counter_bytes(optimizer: OptimizerSpec) -> int:
    """Return the bytes of a tensor's step counter (a float32 scalar)."""
    return 4 if BUILT[optimizer.name].counts else 0


STEPS = 5  # Newton-Schulz iterations (arXiv:2502.16982)


@dataclass(frozen=True)
class Orthogonal:
    """Muon's matrices.

    - ``matrices``, ``elements``: those of two dims, which sharding cuts
    - ``flops``: of the iterations on all of them
    - ``stacked``: of those on fused experts, which a rank holds whole
    - ``size``: bytes of a gathered element
    """

    matrices: int
    elements: float
    flops: float
    stacked: float = 0.0
    size: int = 2


def orthogonal(pieces: Sequence[LocalTensor], optimizer: OptimizerSpec) -> Orthogonal | None:
    """Return the matrices of ``pieces`` that the optimizer orthogonalises; None if there are none."""
    matrices = [p for p in pieces if p.trained and by_muon(p, optimizer)]
    if not matrices:
        return None
    steps = optimizer.args.get("ns_steps", STEPS)
    assert isinstance(steps, int)
    flat = [p for p in matrices if len(p.shape) == 2]
    return Orthogonal(
        len(flat),
        float(sum(p.numel for p in flat)),
        sum(_flops(p, steps) for p in flat),
        sum(_flops(p, steps) for p in matrices if len(p.shape) > 2),
        2 if optimizer.args.get("ns_dtype", "bfloat16") == "bfloat16" else 4,
    )


def _flops(piece: LocalTensor, steps: int) -> float:
    """Return the FLOPs of the iterations on a matrix, or on each of a stack. With m rows, n columns and m at
    most n, an iteration multiplies x xᵀ, the gram matrix by itself, and their sum by x.
    """
    *stack, rows, columns = piece.shape
    m, n = sorted((rows, columns))
    count = 1
    for size in stack:
        count *= size
    return float(count * steps * (4 * m * m * n + 2 * m**3))
