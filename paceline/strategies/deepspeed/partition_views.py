"""This rank's part of each trained parameter: views into ZeRO's flat fp32 partitions and optimizer state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.core.errors import PacelineError
from paceline.protocols.shard import PARAM
from paceline.strategies import codes
from paceline.strategies.replicated_state import counts_on_device

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from paceline.strategies.deepspeed.engine_types import (
        Engine,
        FlatOptimizer,
        PartitionedOptimizer,
        ZeroParameter,
    )


@dataclass(frozen=True)
class ParameterSlice:
    """The block of a parameter that this rank's tensor-parallel shard is (AutoTP shards a dim over
    consecutive ranks).

    ``first``: whether this rank of its tensor-parallel group saves it: always for a sharded parameter, else
    rank 0.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    first: bool

    @staticmethod
    def of(name: str, parameter: nn.Parameter, tp_rank: int) -> ParameterSlice:
        """Read the block from what AutoTP stored on the parameter. Raises PacelineError
        ``strategy.deepspeed_layout`` if it is not contiguous.
        """
        local = tuple(getattr(parameter, "ds_shape", parameter.shape))
        cut = getattr(parameter, "ds_autotp_universal_checkpoint_meta", None)
        if cut is None or cut["replicated"] or cut["partition_dim"] is None:
            return ParameterSlice(local, (0,) * len(local), tp_rank == 0)
        # Sizes may differ by rank, where a dim is not divisible.
        sizes, full_shape = cut["partition_sizes"], cut["original_shape"]
        if (
            not sizes
            or not full_shape
            or cut["conversion"].get("unsupported_reason")
            or cut["sub_param_sizes"]
        ):
            raise PacelineError(codes.STRATEGY_DEEPSPEED_LAYOUT(name, str(cut["partition_type"])))
        dim = cut["partition_dim"]
        offsets = tuple(sum(sizes[:tp_rank]) if d == dim else 0 for d in range(len(full_shape)))
        return ParameterSlice(tuple(full_shape), offsets, True)


@dataclass
class PartitionSlice:
    """``count`` elements from ``start`` of a flattened parameter of ``shape``, at index ``at`` of the flat
    partition ``flat``.

    master   fp32 [count], a view
    moments  the optimizer's moments of the partition, by name; views of ``count`` elements
    step     the optimizer's step counter, fp32 scalar, or None before the first step
    """

    parameter: nn.Parameter
    shape: tuple[int, ...]
    start: int
    count: int
    flat: Tensor
    at: int
    optimizer: torch.optim.Optimizer
    moments: dict[str, Tensor] = field(default_factory=dict)
    step: Tensor | None = None

    @property
    def master(self) -> Tensor:
        """fp32 [count], a view."""
        return self.flat.detach().narrow(0, self.at, self.count)

    def tensors(self) -> dict[str, Tensor]:
        """Return master and moments by kind."""
        return {PARAM: self.master, **self.moments}

    def moment(self, kind: str) -> Tensor:
        """Return the state ``kind``, created if the optimizer has none yet."""
        state = self.optimizer.state[self.flat]
        if kind not in state:
            state[kind] = torch.zeros_like(self.flat, requires_grad=False)
        return state[kind].narrow(0, self.at, self.count)

    def set_step(self, value: Tensor) -> None:
        """Set the optimizer's step counter of the whole partition: equal for all its parameters."""
        # torch's fused AdamW keeps the counter beside the partition.
        beside = counts_on_device(self.optimizer, self.flat)
        self.optimizer.state[self.flat]["step"] = value.to(
            dtype=torch.float32, device=self.flat.device if beside else "cpu", copy=True
        ).reshape(())


def local_parts(engine: Engine, writing: bool = False) -> Iterator[PartitionSlice]:
    """Yield this rank's parts, in an order that is the same on all ranks.

    With an optimizer on NVMe a sub-group's state is in memory only while its parts are being yielded, so they
    are copies. With ``writing`` they are views, and the sub-group is written back afterwards.
    """
    optimizer = engine.optimizer
    if is_partitioned(optimizer):
        yield from _stage3(optimizer, writing)
    else:
        yield from _stage12(optimizer)


def is_partitioned(optimizer: FlatOptimizer | PartitionedOptimizer) -> TypeIs[PartitionedOptimizer]:
    """Whether it is stage 3's."""
    return hasattr(optimizer, "fp16_groups") and hasattr(optimizer, "fp32_partitioned_groups_flat")


def is_managed(parameter: nn.Parameter) -> TypeIs[ZeroParameter]:
    """Whether stage 3 has partitioned this parameter."""
    return hasattr(parameter, "ds_id")


def finish_import(engine: Engine) -> None:
    """Copy the masters into the low-precision working parameters, and link ZeRO's states as after a step.

    Collective: every rank calls it.
    """
    optimizer = engine.optimizer
    if is_partitioned(optimizer):
        # an argument of ``_post_step`` that only names what to log
        timers: set[str] = set()
        optimizer._partition_all_parameters()
        for index in range(len(optimizer.fp16_groups)):
            on_drive = optimizer._swappable_optimizer_subgroup(index)
            if on_drive:
                optimizer._optimizer_states_and_gradient_swap_in(index)
            optimizer._reassign_or_swap_out_partitioned_parameters(index)
            if on_drive:
                optimizer._release_swap_buffers(index)
        optimizer._post_step(timers)
        return
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state") and optimizer.optimizer.state:
        # Else DeepSpeed takes the states for linked already, and the parameters keep views of the former
        # ones.
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    optimizer.update_lp_params()


def _stage12(optimizer: FlatOptimizer) -> Iterator[PartitionSlice]:
    """ZeRO-1 and 2: each group's parameters are concatenated into one flat tensor, which is split into equal
    partitions.
    """
    # ``BF16_Optimizer`` (stage 1 with bf16 in some configs) has other names for the same lists.
    groups = optimizer.bit16_groups if hasattr(optimizer, "bit16_groups") else optimizer.bf16_groups
    flats = (
        optimizer.single_partition_of_fp32_groups
        if hasattr(optimizer, "single_partition_of_fp32_groups")
        else optimizer.fp32_groups_flat_partition
    )
    for group, flat in zip(groups, flats, strict=True):
        moments, step = _state(optimizer.optimizer, flat)
        for parameter in group:
            # None: no element of this parameter lies in this rank's partition.
            mapping = parameter._hp_mapping
            if mapping is None:
                continue
            at, count = mapping.hp_fragment_address.start, mapping.hp_fragment_address.numel
            yield PartitionSlice(
                parameter,
                tuple(parameter.shape),
                mapping.lp_fragment_address.start,
                count,
                flat,
                at,
                optimizer.optimizer,
                {kind: values.narrow(0, at, count) for kind, values in moments.items()},
                step,
            )


def _stage3(optimizer: PartitionedOptimizer, writing: bool) -> Iterator[PartitionSlice]:
    """ZeRO-3: every parameter is split into equal partitions, the last one padded; a sub-group's partitions
    are concatenated.
    """
    for index, group in enumerate(optimizer.fp16_groups):
        on_drive = optimizer._swappable_optimizer_subgroup(index)
        if on_drive:
            optimizer._optimizer_states_and_gradient_swap_in(index)
        flat = optimizer.fp32_partitioned_groups_flat[index]
        moments, step = _state(optimizer.optimizer, flat)
        at = 0
        for parameter in group:
            # The last rank's partition is padded: only ``count`` of its elements are the parameter's.
            size = parameter.partition_numel()
            start = size * optimizer._get_param_partition_rank(parameter)
            count = max(0, min(size, parameter.ds_numel - start))
            if count:
                views = {kind: values.narrow(0, at, count) for kind, values in moments.items()}
                part = PartitionSlice(
                    parameter,
                    tuple(parameter.ds_shape),
                    start,
                    count,
                    flat,
                    at,
                    optimizer.optimizer,
                    views,
                    step,
                )
                yield _copied(part) if on_drive and not writing else part
            # The padding has its place in the flat tensor too.
            at += size
        # Back to the drive, or only free the buffers.
        if on_drive and writing:
            optimizer._optimizer_states_and_gradient_swap_out(index)
        elif on_drive:
            optimizer._release_swap_buffers(index)


def _copied(part: PartitionSlice) -> PartitionSlice:
    """Copy the part to its own memory, as the buffers are reused for the next sub-group."""
    part.flat, part.at = part.master.clone(), 0
    part.moments = {kind: values.clone() for kind, values in part.moments.items()}
    part.step = None if part.step is None else part.step.clone()
    return part


def _state(optimizer: torch.optim.Optimizer, flat: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the moments of ``flat``, and the step counter."""
    state = optimizer.state.get(flat, {})
    # A state of the partition's size is a moment; scalars and counters are not.
    moments = {
        k: v
        for k, v in state.items()
        if isinstance(v, Tensor) and v.numel() == flat.numel() and v.ndim and k != "step"
    }
    step = state.get("step")
    if step is not None:
        step = torch.as_tensor(step, dtype=torch.float32).detach().cpu().reshape(())
    return moments, step
