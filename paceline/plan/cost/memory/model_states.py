"""Model states: exact bytes of parameters, gradients and optimizer per rank, padding included.

Counted as ``Strategy.state_bytes`` measures:

- ``parameters``: the weights as stored between steps, with their low-precision copies, quantization scales
  and an engine's fp32 masters
- ``gradients``: those ready for the optimizer after the last backward of an accumulation window
- ``optimizer``: the moments
- ``counters``: the optimizer's step counters (activations, communication buffers and temporarily gathered
weights are not states)

Sources: Rajbhandari et al. 2020 (arXiv:1910.02054) for what each ZeRO stage shards; paddings read from torch
2.13 and DeepSpeed 0.19.8.

The search counts an optimizer's bytes per parameter under each layout (``OptimizerStates``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.config.registries.optimizers import BUILT, parse_optim_args, supports
from paceline.config.sections.training import TrainingSection
from paceline.core.units import human_bytes
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.features.freezing import Freezing
from paceline.plan.features.precision import rounds
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.parameter_list import targets_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec, Decision, Memory, ModelStates, OptimizerSpec, Plan
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.workload.local_tensors import (
    SIZES,
    LocalTensor,
    piece_counters,
    piece_moments,
    pieces_of,
    scale_bytes,
    sum_of,
    tp_share,
    whole_states,
)
from paceline.plan.workload.step_spec import Storage, StrategyLayout

MANY_RANKS = 64  # for larger worlds, only the first and last rank of each stage are computed


def keeps_copies(hardware: Hardware, compute: str) -> bool:
    """Whether low-precision copies of fp32 weights are kept.

    Not if matmuls run in fp32: fp32 compute, or a CPU without instructions for ``compute``.
    """
    if compute not in ("bfloat16", "float16"):
        return False
    return hardware.device != "cpu" or compute in hardware.products


def model_states(plan: Plan, rank: int) -> ModelStates | None:
    """Return the states that ``rank`` keeps under ``plan``, summed over all models.

    None if unknown: the model's size, the strategy's states, or an adapter with biases.
    """
    if plan.shape is None or plan.memory is None:
        return None
    if plan.models:
        every = states_by_role(plan, rank)
        return sum_of([s for s in every.values() if s is not None]) if None not in every.values() else None
    spec = strategy_spec(plan.strategy)
    pieces = pieces_of(
        plan.shape,
        plan.adapter,
        SIZES[plan.precision.master],
        spec.own_stages(plan, rank),
        Freezing.of(plan),
    )
    states = None if pieces is None else spec.states(plan, pieces, rank)
    return None if states is None else _with_scales(states, plan.shape, plan.adapter)


def _with_scales(states: ModelStates, shape: ModelShape, adapter: AdapterSpec | None) -> ModelStates:
    """Add the scales of quantized weights, which every rank keeps whole under any sharding."""
    return replace(states, parameters=states.parameters + scale_bytes(shape, adapter))


def states_by_role(plan: Plan, rank: int) -> dict[str, ModelStates | None]:
    """Return the states of each model that ``rank`` keeps, by role; the main trained model comes first."""
    states = {algorithm_spec(plan.algorithm).trains: model_states(replace(plan, models={}), rank)}
    for role, model in plan.models.items():
        alone = replace(plan, shape=model.shape, models={})
        if model.trained:
            states[role] = model_states(alone, rank)
            continue
        states[role] = _frozen_states(alone, model.model, rank)
        kept = states[role]
        if (
            (role in algorithm_spec(plan.algorithm).lends_head)
            and kept is not None
            and strategy_spec(plan.strategy).shares_frozen(plan.engine)
        ):
            states[role] = replace(
                kept,
                parameters=kept.parameters
                + (
                    0
                    if alone.shape is None
                    else alone.shape.vocab * alone.shape.hidden_size * SIZES[alone.precision.compute]
                ),
            )
    return states


def _frozen_states(plan: Plan, model: str | None, rank: int) -> ModelStates | None:
    """Return the states of a frozen model.

    A model initialized from the policy (``model`` is None) has the policy's adapter.
    """
    adapter = plan.adapter if model is None else None
    listed = None if plan.shape is None else pieces_of(plan.shape, adapter, SIZES[plan.precision.master])
    if plan.shape is None or listed is None:
        return None
    frozen, spec = [replace(p, trained=False) for p in listed], strategy_spec(plan.strategy)
    kept = (
        spec.states(plan, frozen, rank)
        if spec.shares_frozen(plan.engine)
        else whole_states(plan, [tp_share(p, plan.mesh.tp, vocabulary=False) for p in frozen])
    )
    return None if kept is None else _with_scales(ModelStates(kept.parameters, 0, 0), plan.shape, adapter)


def memory_of(plan: Plan, hardware: Hardware) -> Memory:
    """Compute ``Plan.memory``: whether copies are kept, and the states of the largest and smallest rank."""
    memory = Memory(keeps_copies(hardware, plan.precision.compute))
    planned = replace(plan, memory=memory)
    ranks: Sequence[int] = range(plan.world_size)
    if plan.world_size > MANY_RANKS:
        a_stage = plan.world_size // plan.mesh.pp
        # Ranks of a stage differ by padding only: its first and last are the extremes.
        ranks = [stage * a_stage + offset for stage in range(plan.mesh.pp) for offset in (0, a_stage - 1)]
    states = [state for state in (model_states(planned, rank) for rank in ranks) if state is not None]
    if plan.models:
        kept = {rank: states_by_role(planned, rank) for rank in ranks}
        counted = {rank: by for rank, by in kept.items() if None not in by.values()} or kept
        memory = replace(
            memory,
            roles=max(counted.values(), key=lambda by: sum(s.total for s in by.values() if s is not None)),
        )
    if not states:
        return memory
    return replace(
        memory, largest=max(states, key=lambda s: s.total), smallest=min(states, key=lambda s: s.total)
    )


_KEY = "training.save_async"


def checkpoint_bytes(plan: Plan) -> int | None:
    """Return the bytes of a checkpoint's tensors over all ranks: trained weights and their moments.

    None if a model's tensors cannot be listed.
    """
    trained = [model.shape for model in plan.models.values() if model.trained]
    sizes = [_of_model(plan, shape) for shape in (plan.shape, *trained)]
    counted = [num_bytes for num_bytes in sizes if num_bytes is not None]
    return sum(counted) if len(counted) == len(sizes) else None


def _of_model(plan: Plan, shape: ModelShape | None) -> int | None:
    if shape is None:
        return None
    pieces = pieces_of(shape, plan.adapter, SIZES[plan.precision.master], freezing=Freezing.of(plan))
    if pieces is None:
        return None
    return sum(
        p.numel * p.size + piece_moments(p, plan.optimizer) + piece_counters(p, plan.optimizer)
        for p in pieces
        if p.trained
    )


def with_snapshot(plan: Plan, hardware: Hardware, held: int) -> Plan:
    """Return ``plan`` with the decision whether checkpoints are saved during training, if the config requests
    that.

    Each rank copies its part of the checkpoint; a node's ranks together copy about the node's share. That
    must fit next to the states in its host memory.
    """
    if not plan.config.training.save_async:
        return plan
    checkpoint, host = checkpoint_bytes(plan), hardware.host_memory_bytes
    decision = Decision(
        _KEY,
        "on",
        "a save copies what it writes into host memory, which later saves reuse; hashing and writing go on"
        " beside training; the size of the copy is not known before the start",
    )
    if checkpoint is not None:
        node = checkpoint // plan.num_nodes
        each = node // (plan.ranks_per_node)
        copy = f"{human_bytes(each)} a process, {human_bytes(node)} a node"
        if host and held + node > host:
            return replace(
                plan,
                decisions=(
                    *plan.decisions,
                    Decision(
                        _KEY,
                        "off",
                        f"the copy of what is saved needs {copy}, beside {human_bytes(held)} of states and"
                        f" interpreters: more than the {human_bytes(host)} of host memory; saves are"
                        " synchronous",
                        granted=False,
                    ),
                ),
            )
        of_host = f" (of {human_bytes(host)})" if host else ""
        decision = Decision(
            _KEY,
            "on",
            f"a save copies what it writes into host memory, which later saves reuse: {copy}{of_host};"
            " hashing and writing go on beside training, at most one save at a time",
        )
    return replace(plan, save_async=True, decisions=(*plan.decisions, decision))


_ADAM = 8.0  # bytes of AdamW's moments a parameter, which the layouts' tables have


@dataclass(frozen=True)
class OptimizerStates:
    """``moments``: bytes a trained parameter; ``bf16_weights``: weights and gradients in bfloat16 alone;
    ``computes_bf16``: products are computed in it.
    """

    optim: str = "adamw_torch_fused"
    moments: float = _ADAM
    bf16_weights: bool = False
    computes_bf16: bool = True

    @classmethod
    def of(
        cls, pieces: Sequence[LocalTensor], optimizer: OptimizerSpec, *, bf16_weights: bool
    ) -> OptimizerStates:
        """Return the states of ``optimizer`` on the trained ``pieces``; those of AdamW if one of the two is
        None."""
        trained = [piece for piece in pieces if piece.trained]
        count = sum(piece.numel for piece in trained)
        if not count or optimizer.name not in BUILT:
            return cls(optimizer.name, bf16_weights=bf16_weights)
        total = sum(piece_moments(piece, optimizer) for piece in trained)
        return cls(optimizer.name, total / count, bf16_weights)

    @classmethod
    def configured(
        cls, training: TrainingSection, shape: ModelShape, adapter: AdapterSpec | None
    ) -> OptimizerStates:
        """Return the states of a job whose precision is not resolved yet. Raises ConfigError."""
        bf16 = training.pure_bf16 or rounds(training.optim)
        optimizer = OptimizerSpec(
            training.optim,
            args=parse_optim_args(training.optim_args),
            target_modules=targets_of(training.optim_target_modules),
        )
        freezing = Freezing.configured(training, shape)
        pieces = pieces_of(shape, adapter, 2 if bf16 else 4, freezing=freezing) or ()
        return cls.of(pieces, optimizer, bf16_weights=bf16)

    @property
    def saved(self) -> float:
        """Bytes a trained parameter in a checkpoint: the weight, its average if there is one, the moments."""
        row, weight = BUILT.get(self.optim), 2.0 if self.bf16_weights else 4.0
        return weight * (2 if row is not None and row.averaged else 1) + self.moments

    def pure_bf16(self) -> OptimizerStates | None:
        """Return the states with weights only in bfloat16 (torch's optimizers then keep bfloat16 moments);
        None if that is so already, or impossible.
        """
        row = BUILT.get(self.optim)
        if self.bf16_weights or not self.computes_bf16 or (row is not None and row.averaged):
            return None
        return replace(
            self,
            # torch's optimizers make moments in the weights' dtype; packages and factored ones keep fp32.
            moments=self.moments / 2
            if (row is None or (not row.package and not row.factored))
            else self.moments,
            bf16_weights=True,
        )

    def storage(self, layout: StrategyLayout) -> Storage:
        """Return the layout's bytes a parameter with these states."""
        layout_storage = layout.storage
        if self.bf16_weights:
            return replace(layout_storage, weight=2.0, gradient=2.0, optimizer=self.moments)
        return replace(layout_storage, optimizer=layout_storage.optimizer - _ADAM + self.moments)

    def allows(self, layout: StrategyLayout) -> bool:
        """Whether the layout's strategy supports this optimizer and these weights."""
        spec = strategy_spec(layout.strategy)
        if self.bf16_weights and (not spec.bf16_masters or layout.tp or layout.pp or layout.cp):
            return False
        return supports(self.optim, spec.state_split)
