"""Special cases of partitioned parameters (ZeRO-3): weights read by another module than their own, and
decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from torch import Tensor, nn

from paceline.models.module_tensors import replaced
from paceline.protocols.model import RootModule
from paceline.strategies.deepspeed.partition_views import is_managed, is_partitioned

if TYPE_CHECKING:
    from paceline.strategies.deepspeed.engine_types import Engine, PartitionedOptimizer


_REGISTER = "create_reduce_and_remove_grad_hooks"


def register_head(root: RootModule) -> None:
    """Register the head's weight for gathering in the forward of ``root``, which reads it without calling the
    head.

    Otherwise DeepSpeed would detect this in the first forward, with a message and a gather in the middle of
    it.
    """
    from deepspeed.runtime.zero import register_external_parameter

    head = root.hf.get_output_embeddings()
    for parameter in head.parameters(recurse=False) if head is not None else ():
        register_external_parameter(root, parameter)


def hooks_without_gathering() -> AbstractContextManager[None]:
    """Inside the context a new engine registers the hooks of its gradients on partitioned parameters.

    DeepSpeed gathers each parameter first, so that every rank holds a whole embedding (with gloo twice) and
    the start sends the model once more. torch's hooks (2.1) need no values.
    """
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    register = getattr(DeepSpeedZeroOptimizer_Stage3, _REGISTER)

    def without(optimizer: PartitionedOptimizer) -> None:
        parameters = [parameter for group in optimizer.fp16_groups for parameter in group]
        with ExitStack() as stack:
            for parameter in parameters:  # gathers nothing: the parameter stays partitioned
                stack.enter_context(replaced(parameter, all_gather=lambda: None))
            register(optimizer)

    return replaced(DeepSpeedZeroOptimizer_Stage3, **{_REGISTER: without})


@contextmanager
def gathered(engine: Engine) -> Iterator[None]:
    """Inside the context every rank holds the whole model and may call it independently: DeepSpeed's hooks,
    which are collectives, are off.

    Collective on entry and exit.
    """
    from deepspeed.runtime.zero import GatheredParameters

    optimizer = engine.optimizer
    assert is_partitioned(optimizer)
    offload = optimizer.parameter_offload
    parameters = [p for p in engine.module.parameters() if is_managed(p)]
    optimizer._partition_all_parameters()
    offload._remove_module_hooks()
    # ``setup_zero_stage3_hooks`` appends to these lists: handles of removed hooks must not stay.
    offload.forward_hooks.clear()
    offload.backward_hooks.clear()
    for parameter in parameters:
        # Modules that DeepSpeed believes to be using it: as long as there are any, it is not released.
        parameter.ds_active_sub_modules.clear()
    try:
        with GatheredParameters(parameters):
            yield
    finally:
        offload.setup_zero_stage3_hooks()


@contextmanager
def gathered_by_layer(engine: Engine) -> Iterator[None]:
    """Inside the context DeepSpeed's hooks gather one module at a time in forwards of the Hugging Face model;
    all ranks must make the same number.

    Call on all ranks.
    """
    optimizer = engine.optimizer
    assert is_partitioned(optimizer)
    coordinator = optimizer.parameter_offload.get_param_coordinator()
    # in training the root's own hook does this
    begins = engine.module.hf.register_forward_pre_hook(lambda *_: coordinator.reset_step())
    try:
        yield
    finally:
        begins.remove()
        optimizer._partition_all_parameters()


@contextmanager
def whole(parameters: Sequence[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Inside the context every rank holds these parameters; yield their values. Collective."""
    from deepspeed.runtime.zero import GatheredParameters

    managed = [p for p in parameters if is_managed(p)]
    for parameter in managed:
        parameter.ds_active_sub_modules.clear()
    with GatheredParameters(managed):
        yield [p.detach() for p in parameters]


def own_part(parameter: nn.Parameter) -> Tensor:
    """Return the memory of this rank's partition. Another copy, gathered for a forward, is dropped."""
    if not is_managed(parameter):
        return parameter.detach()
    parameter.ds_active_sub_modules.clear()
    parameter.partition()
    return parameter.ds_tensor.data
