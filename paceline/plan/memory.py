"""Model states: the exact bytes of parameters, gradients and optimizer that a rank keeps, padding included, before anything is started.

What is counted, as ``Strategy.state_bytes`` measures it: ``parameters`` are the weights as they lie between steps with their low-precision
copies, the scales of packed ones and an engine's fp32 masters; ``gradients`` what stands ready for the optimizer after the last backward of a window; ``optimizer`` the moments;
``counters`` the optimizer's numbers of steps. Activations, communication buffers and what is gathered for a moment are not states.
Sources: Rajbhandari et al. 2020 (arXiv:1910.02054) for what each ZeRO stage shares out; paddings read from torch 2.13 and DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from paceline.config.optimizers import BUILT
from paceline.plan.algorithms.base import algorithm_spec
from paceline.plan.hardware import Hardware
from paceline.plan.pieces import Piece, own_stages, pieces_of, scale_bytes, tp_share
from paceline.plan.plan import Plan
from paceline.plan.shape import ModelShape

SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
MANY_RANKS = 64  # above, only the first and the last ranks of each stage are computed


@dataclass(frozen=True)
class ModelStates:
    """Bytes that one rank keeps from step to step."""

    parameters: int
    gradients: int
    optimizer: int
    counters: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer + self.counters

    def to_json(self) -> dict[str, int]:
        """Plain JSON types."""
        return asdict(self)


def keeps_copies(hardware: Hardware, compute: str) -> bool:
    """Whether low-precision copies of fp32 weights are kept: not where products are made in fp32 (a CPU without the instructions)."""
    if compute not in ("bfloat16", "float16"):
        return False
    return hardware.device != "cpu" or compute in hardware.products


def model_states(plan: Plan, rank: int) -> ModelStates | None:
    """What ``rank`` keeps under ``plan``; None where it cannot be told: size unknown, a strategy of the user's own, an unusual adapter."""
    if plan.shape is None or ":" in plan.strategy or plan.memory is None:
        return None
    if plan.models:
        every = states_by_role(plan, rank)
        return sum_of([s for s in every.values() if s is not None]) if None not in every.values() else None
    stages = own_stages(plan.engine, plan.mesh, plan.mesh.coordinates(rank).pp) if plan.strategy == "pipeline" else None
    pieces = pieces_of(plan.shape, plan.adapter, SIZES[plan.precision.master], stages)
    return None if pieces is None else _with_scales(_cut(plan, pieces, rank), plan.shape, plan.adapter)


def _with_scales(states: ModelStates, shape: ModelShape, adapter: Mapping[str, Any] | None) -> ModelStates:
    """The scales of packed weights lie beside them whole on every rank, whatever is shared out."""
    return replace(states, parameters=states.parameters + scale_bytes(shape, adapter))


def _cut(plan: Plan, pieces: Sequence[Piece], rank: int) -> ModelStates:
    """What the engine leaves ``rank`` of these tensors."""
    from paceline.plan.memory_zero import zero_states

    if "zero_stage" in plan.engine:
        tp = int(plan.engine.get("autotp_size", 1))
        pieces = tuple(tp_share(p, tp, vocabulary=False) for p in pieces)
        if plan.engine["zero_stage"] > 0:
            return zero_states(plan, pieces, rank)
    else:
        fsdp = plan.engine.get("fsdp", plan.engine)
        pieces = tuple(tp_share(p, plan.mesh.tp, vocabulary=bool(fsdp.get("loss_parallel"))) for p in pieces)
    if plan.strategy == "fsdp" or (plan.strategy == "pipeline" and (plan.mesh.dp_shard > 1 or plan.mesh.tp > 1)):
        return _sharded(plan, pieces, rank)
    return _whole(plan, pieces)


def states_by_role(plan: Plan, rank: int) -> dict[str, ModelStates | None]:
    """Of each model that ``rank`` keeps, the trained one that the algorithm is about first: frozen ones are shared out by FSDP and ZeRO-3, whole
    under every other strategy."""
    own = algorithm_spec(plan.algorithm).trains
    found = {own: model_states(replace(plan, models={}), rank)}
    for role, model in plan.models.items():
        shape = ModelShape.from_json(model["shape"]) if model["shape"] else None
        alone = replace(plan, shape=shape, models={})
        found[role] = model_states(alone, rank) if model["trained"] else _frozen_states(alone, model["model"], rank)
    return found


def _frozen_states(plan: Plan, named: str | None, rank: int) -> ModelStates | None:
    """A model that is only asked; one that starts from the policy's weights has the policy's adapter."""
    from paceline.plan.memory_zero import zero_states

    adapter = plan.adapter if named is None else None
    listed = None if plan.shape is None else pieces_of(plan.shape, adapter, SIZES[plan.precision.master])
    if plan.shape is None or listed is None:
        return None
    frozen = [
        replace(tp_share(p, plan.mesh.tp, vocabulary=bool(plan.engine.get("loss_parallel"))), trained=False)
        for p in listed
    ]
    if plan.engine.get("zero_stage") == 3:
        return ModelStates(zero_states(plan, frozen, rank).parameters, 0, 0)
    kept = _sharded(plan, frozen, rank) if plan.strategy == "fsdp" else _whole(plan, frozen)
    return _with_scales(ModelStates(kept.parameters, 0, 0), plan.shape, adapter)


def sum_of(states: Sequence[ModelStates]) -> ModelStates:
    """Of several models."""
    return ModelStates(*(sum(getattr(s, f.name) for s in states) for f in fields(ModelStates)))


def _whole(plan: Plan, pieces: Sequence[Piece]) -> ModelStates:
    """Whole copies (single, ddp, data_parallel, ZeRO-0, stages that are not sharded)."""
    copies = bool(plan.memory and plan.memory["copies"])
    trained = [p for p in pieces if p.trained]
    return ModelStates(
        parameters=sum(p.numel * _size(p, copies) for p in pieces),
        gradients=sum(p.numel * p.size for p in trained),
        optimizer=sum(p.size * moments(p.shape, plan.optimizer) for p in trained),
        counters=counter_bytes(plan.optimizer) * len(trained),
    )


def _size(piece: Piece, copies: bool) -> int:
    """Bytes an element: a trained weight has its copy beside it, of a frozen one only the copy is left."""
    if not copies or not piece.has_copy:
        return piece.size
    return piece.size + 2 if piece.trained else 2


def _sharded(plan: Plan, pieces: Sequence[Piece], rank: int) -> ModelStates:
    """FSDP2 cuts dim 0 into equal chunks and pads the last ones; weights and gradients are kept padded, moments are not."""
    ranks, index = shard_of(plan, rank)
    trained = [p for p in pieces if p.trained]
    kept = {id(p): _rows(p.shape[0], ranks, index) for p in pieces}
    return ModelStates(
        parameters=sum(p.size * _padded(p.shape, ranks) for p in pieces),
        gradients=sum(p.size * _padded(p.shape, ranks) for p in trained),
        optimizer=sum(p.size * moments((kept[id(p)], *p.shape[1:]), plan.optimizer) for p in trained),
        counters=counter_bytes(plan.optimizer) * len(trained),
    )


def shard_of(plan: Plan, rank: int) -> tuple[int, int]:
    """(ranks that share one copy of the weights, this one among them): the ranks of a cp group shard together."""
    at = plan.mesh.coordinates(rank)
    return plan.mesh.dp_shard * plan.mesh.cp, at.dp_shard * plan.mesh.cp + at.cp


def _rows(rows: int, ranks: int, index: int) -> int:
    """Rows of the ``index``-th chunk (``torch.chunk``: all but the last non-empty one are equal)."""
    each = -(-rows // ranks)
    return max(0, min(each, rows - each * index))


def _padded(shape: tuple[int, ...], ranks: int) -> int:
    each = -(-shape[0] // ranks)
    count = each
    for size in shape[1:]:
        count *= size
    return count


def moments(shape: tuple[int, ...], optimizer: Mapping[str, Any]) -> int:
    """Numbers that the optimizer keeps for a tensor of ``shape``, by the table that it is built from."""
    return BUILT[optimizer["name"]].kept(shape, optimizer.get("args") or {})


def counter_bytes(optimizer: Mapping[str, Any]) -> int:
    """Bytes of a tensor's number of steps, a float32 scalar."""
    return 4 if BUILT[optimizer["name"]].counts else 0


def memory_of(plan: Plan, hardware: Hardware) -> dict[str, Any]:
    """``Plan.memory``: whether copies are kept, and the states of the rank that keeps most and of the one that keeps least."""
    found: dict[str, Any] = {
        "copies": keeps_copies(hardware, plan.precision.compute),
        "largest": None,
        "smallest": None,
    }
    planned = replace(plan, memory=found)
    ranks: Sequence[int] = range(plan.world_size)
    if plan.world_size > MANY_RANKS:
        a_stage = plan.world_size // plan.mesh.pp
        ranks = [stage * a_stage + at for stage in range(plan.mesh.pp) for at in (0, a_stage - 1)]
    states = [state for state in (model_states(planned, rank) for rank in ranks) if state is not None]
    if plan.models:
        kept = {rank: states_by_role(planned, rank) for rank in ranks}
        known = {rank: by for rank, by in kept.items() if None not in by.values()} or kept
        fullest = max(known.values(), key=lambda by: sum(s.total for s in by.values() if s is not None))
        found["roles"] = {role: None if s is None else s.to_json() for role, s in fullest.items()}
    if states:
        found["largest"] = max(states, key=lambda s: s.total).to_json()
        found["smallest"] = min(states, key=lambda s: s.total).to_json()
    return found
