"""What is special where parameters themselves are partitioned (ZeRO-3): weights that a module reads from outside, and decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def register_head(root: nn.Module) -> None:
    """Have the head's weight gathered for the forward of ``root``, which reads it itself instead of calling the layer that owns it.

    DeepSpeed would find out at the first forward, by way of a message and a gather in the middle of it.
    """
    from deepspeed.runtime.zero import register_external_parameter

    hf: Any = getattr(root, "hf", None)
    head = hf.get_output_embeddings() if hf is not None else None
    for parameter in head.parameters(recurse=False) if head is not None else ():
        register_external_parameter(root, parameter)


@contextmanager
def gathered(engine: Any) -> Iterator[None]:
    """Every rank holds the whole model inside, and ranks need not call it alike: DeepSpeed's hooks, each a collective, are off. Collective at both ends."""
    from deepspeed.runtime.zero import GatheredParameters

    offload = engine.optimizer.parameter_offload
    parameters = [p for p in engine.module.parameters() if hasattr(p, "ds_id")]
    engine.optimizer._partition_all_parameters()
    offload._remove_module_hooks()
    offload.forward_hooks.clear()
    offload.backward_hooks.clear()
    for parameter in parameters:
        parameter.ds_active_sub_modules.clear()
    try:
        with GatheredParameters(parameters):
            yield
    finally:
        offload.setup_zero_stage3_hooks()


@contextmanager
def gathered_by_layer(engine: Any) -> Iterator[None]:
    """DeepSpeed's hooks gather a module at a time in forwards of the Hugging Face model alone; all ranks make equally many. Collective at both ends."""
    coordinator = engine.optimizer.parameter_offload.get_param_coordinator()
    begins = engine.module.hf.register_forward_pre_hook(
        lambda *_: coordinator.reset_step()
    )  # the root's hook does it in training
    try:
        yield
    finally:
        begins.remove()
        engine.optimizer._partition_all_parameters()
