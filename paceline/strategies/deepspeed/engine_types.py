"""Types of DeepSpeed 0.19's engine and optimizers: the parts that Paceline uses.

The package brings no types of its own; other modules import this one for their annotations only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils.hooks import RemovableHandle

from paceline.core.json_types import JsonObject
from paceline.protocols.model import RootModule


class Fragment(Protocol):
    """A range of a flat tensor, in elements."""

    start: int
    numel: int


class FragmentMapping(Protocol):
    """A rank's part of a parameter: its range of the flattened parameter, and of the flat fp32 partition."""

    lp_fragment_address: Fragment
    hp_fragment_address: Fragment


class ZeroParameter(nn.Parameter):
    """A parameter that ZeRO manages. ``_hp_mapping`` is that of stages 1 and 2, the rest of stage 3.

    ``partition_numel``: elements of a rank's partition, with padding; ``partition`` makes it and frees the
    whole.
    """

    _hp_mapping: FragmentMapping | None
    ds_shape: torch.Size
    ds_numel: int
    ds_tensor: Tensor
    ds_process_group: ProcessGroup
    all_gather: Callable[[], None]
    partition: Callable[[], None]
    ds_active_sub_modules: set[int]
    partition_numel: Callable[[], int]


class Partitioner(Protocol):
    """``zero.Init``: makes stage 3's parameters. ``rank_in_group``: the rank in its group of ZeRO++'s
    hierarchical partitioning; without that, in the world.
    """

    rank: int
    dp_world_size: int
    rank_in_group: int
    num_ranks_in_param_group: int
    local_device: torch.device
    _convert_to_deepspeed_param: Callable[[nn.Parameter], None]
    _keep_in_fp32: Callable[[nn.Module], None]


class FlatOptimizer(Protocol):
    """Stages 1 and 2: ``optimizer`` is torch's, of the flat partitions.

    ``BF16_Optimizer`` calls its groups ``bf16_groups`` and its partitions ``fp32_groups_flat_partition``.
    """

    optimizer: torch.optim.Optimizer
    clip_grad: float
    loss_scale: float
    zero_grad: Callable[[], None]
    scaled_global_norm: Callable[[], Tensor]
    bit16_groups: Sequence[Sequence[ZeroParameter]]
    bf16_groups: Sequence[Sequence[ZeroParameter]]
    single_partition_of_fp32_groups: Sequence[Tensor]
    fp32_groups_flat_partition: Sequence[Tensor]
    update_lp_params: Callable[[], None]
    _hp_optimizer_states_linked: bool
    _lazy_init_hp_params_optimizer_state: Callable[[], None]


class Coordinator(Protocol):
    """Stage 3's order of gathering."""

    reset_step: Callable[[], None]


class ParameterOffload(Protocol):
    """Stage 3's hooks on the modules."""

    forward_hooks: list[RemovableHandle]
    backward_hooks: list[RemovableHandle]
    setup_zero_stage3_hooks: Callable[[], None]
    get_param_coordinator: Callable[[], Coordinator]
    _remove_module_hooks: Callable[[], None]


class PartitionedOptimizer(Protocol):
    """Stage 3: every parameter is partitioned; a sub-group's state may lie on a drive."""

    optimizer: torch.optim.Optimizer
    clip_grad: float
    loss_scale: float
    zero_grad: Callable[[], None]
    fp16_groups: Sequence[Sequence[ZeroParameter]]
    fp32_partitioned_groups_flat: Sequence[Tensor]
    parameter_offload: ParameterOffload
    _get_norm_groups: Callable[[], Sequence[Tensor]]
    _swappable_optimizer_subgroup: Callable[[int], bool]
    _optimizer_states_and_gradient_swap_in: Callable[[int], None]
    _optimizer_states_and_gradient_swap_out: Callable[[int], None]
    _release_swap_buffers: Callable[[int], None]
    _reassign_or_swap_out_partitioned_parameters: Callable[[int], None]
    _get_param_partition_rank: Callable[[nn.Parameter], int]
    _partition_all_parameters: Callable[[], None]
    _post_step: Callable[[set[str]], None]


class OpBuilder(Protocol):
    """Builder of a native op."""

    def is_compatible(self, verbose: bool) -> bool: ...

    def load(self, verbose: bool) -> ModuleType: ...


class Accelerator(Protocol):
    """DeepSpeed's kind of device."""

    def create_op_builder(self, class_name: str) -> OpBuilder | None: ...


class FlopsProfiler(Protocol):
    """DeepSpeed's flops profiler."""

    start_profile: Callable[[], None]


class SequenceGroups(Protocol):
    """DeepSpeed's Ulysses groups."""

    get_sequence_parallel_group: Callable[[], ProcessGroup]


class TensorParallelState(Protocol):
    """AutoTP's settings, and what it has replaced: handed on as they are."""


class Engine(nn.Module):
    """``DeepSpeedEngine``."""

    module: RootModule
    optimizer: FlatOptimizer | PartitionedOptimizer
    config: JsonObject
    mpu: SequenceGroups
    flops_profiler: FlopsProfiler
    global_rank: int
    global_steps: int
    world_size: int
    seq_dp_world_size: int
    sequence_parallel_size: int
    zero_optimization: Callable[[], bool]
    zero_optimization_stage: Callable[[], int]
    autotp_size: Callable[[], int | None]
    flops_profiler_enabled: Callable[[], bool]
    flops_profiler_profile_step: Callable[[], int]
    set_gradient_accumulation_boundary: Callable[[bool], None]
    step: Callable[[], None]
    get_global_grad_norm: Callable[[], float | Tensor]
    destroy: Callable[[], None]

    def backward(self, loss: Tensor, scale_wrt_gas: bool) -> None: ...

    def _configure_tensor_parallel(
        self, model: RootModule, settings: TensorParallelState
    ) -> TensorParallelState: ...
