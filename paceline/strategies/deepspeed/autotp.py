"""AutoTP for our root modules: what it needs to shard the layers, and what must stay whole."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache

from torch import nn
from torch.distributed import ProcessGroup
from transformers import PretrainedConfig

from paceline.core.errors import ConfigError
from paceline.models.parallel.tensor_parallel_cut import ROWWISE
from paceline.models.parallel.tensor_parallel_lora import adapted_plan, is_adapted, share_dropout
from paceline.models.replace_forward import own_class
from paceline.plan.strategies.deepspeed.options import no_tensor_plan, tensor_plan_without_zero
from paceline.protocols.model import RootModule


def prepare_root(root: RootModule, stage: int) -> None:
    """Give ``root`` what AutoTP looks for: the model's config (with its plan and its key-value heads), and
    layers of exactly ``nn.Linear``.

    Only the trunk is sharded: the head computes losses from its whole weight and stays replicated. AutoTP
    recognizes layers by their exact class and silently skips subclasses. Raises ConfigError for a model
    without a plan, or for stage 0.
    """
    # A copy: the model's own config keeps the plan of its class.
    config = copy.copy(root.hf.config)
    check_tp_plan(config)
    plan = dict(config.base_model_tp_plan or {})
    # of this instance alone
    setattr(config, "base_model_tp_plan", adapted_plan(root.hf.base_model, plan))  # noqa: B010
    if not stage:
        raise ConfigError(
            tensor_plan_without_zero("zero_optimization.stage", "0 with tensor_parallel", '"stage": 1')
        )
    _open_adapters(root, plan)
    # a plain attribute, which a Module's own type does not declare
    setattr(root, "config", config)  # noqa: B010
    for module in root.modules():
        if not isinstance(module, nn.Linear) or type(module) is nn.Linear or module._forward_hooks:
            continue
        if "Router" not in own_class(module).__name__:  # whose forward chooses, too
            # AutoTP compares with ``type(module) is nn.Linear``; the low-precision copies that our subclass
            # adds are the engine's own from stage 1 on.
            module.__class__ = nn.Linear


def _open_adapters(root: RootModule, plan: Mapping[str, str]) -> None:
    """Let AutoTP see the layer, A and B inside an adapted layer. AutoTP replaces every module that has a
    weight of two dims. peft's wrapper shows its layer's weight, so AutoTP would drop the adapter.

    Features of row-parallel layers are dropped as one process does.
    """
    rows = {pattern.rpartition(".")[2] for pattern, style in plan.items() if style in ROWWISE}
    for name, layer in [*root.named_modules()]:
        if not is_adapted(layer):
            continue
        if name.rpartition(".")[2] in rows:
            for dropout, forward in share_dropout(layer, tensor_group).items():
                vars(dropout)["forward"] = forward
        module: nn.Module = layer
        module.__class__ = _without_weight(type(layer))


@cache
def _without_weight(kind: type[nn.Module]) -> type[nn.Module]:
    """Return ``kind`` without peft's property ``weight``, which is that of the layer inside."""

    def missing(layer: nn.Module) -> None:
        raise AttributeError("weight")

    return type(kind.__name__, (kind,), {"weight": property(missing)})


def tensor_group() -> ProcessGroup:
    """Return the group over which AutoTP shards."""
    from deepspeed.utils import groups

    group: ProcessGroup = groups.get_tensor_model_parallel_group()
    return group


def check_tp_plan(config: PretrainedConfig) -> None:
    """Raise ConfigError for a Hugging Face config without a tensor-parallel plan."""
    if not getattr(config, "base_model_tp_plan", None):
        raise ConfigError(
            no_tensor_plan(
                "training.deepspeed",
                f"model_type {getattr(config, 'model_type', None)} with tensor_parallel.autotp_size",
            )
        )


def unsharded(root: RootModule) -> list[str]:
    """Return what is wrong with the sharding: no layer replaced, weights of full size, or a sharded head."""
    replaced = [m for m in root.modules() if type(m).__module__.startswith("deepspeed.module_inject")]
    if not replaced:
        return ["AutoTP has replaced no layer: every rank computes the complete model"]
    # A weight with a partition dim whose local shape is still the original one.
    full = [
        name
        for name, p in root.named_parameters()
        if (cut := getattr(p, "ds_autotp_universal_checkpoint_meta", None)) is not None
        and cut["partition_dim"] is not None
        and tuple(getattr(p, "ds_shape", p.shape)) == tuple(cut["original_shape"])
    ]
    wrong = [f"AutoTP has left {len(full)} weights unsharded ({full[0]}, …)"] if full else []
    head = root.hf.get_output_embeddings()
    if head is not None and type(head).__module__.startswith("deepspeed"):
        wrong.append("AutoTP has sharded the head, whose complete weight the loss needs")
    return wrong
