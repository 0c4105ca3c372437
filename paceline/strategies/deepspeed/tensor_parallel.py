"""AutoTP for our root modules: what it needs to shard the layers, and what must stay whole."""

from __future__ import annotations

from torch import nn
from transformers import PretrainedConfig

from paceline.core.errors import ConfigError
from paceline.models.kept_forwards import own_class
from paceline.plan import codes as plan_codes
from paceline.protocols.model import RootModule


def prepare_root(root: RootModule, stage: int) -> None:
    """Give ``root`` what AutoTP looks for: the model's config (with its plan and its key-value heads), and
    layers of exactly ``nn.Linear``.

    Only the trunk is sharded: the head computes losses from its whole weight and stays replicated. AutoTP
    recognizes layers by their exact class and silently skips subclasses. Raises ConfigError for a model
    without a plan, or for stage 0.
    """
    config = root.hf.config
    check_tp_plan(config)
    if not stage:
        raise ConfigError(
            plan_codes.STRATEGY_DEEPSPEED_TP_STAGE(
                "AutoTP without ZeRO clips each rank's part of the model separately",
                "zero_optimization.stage",
                "0 with tensor_parallel",
                '"stage": 1',
            )
        )
    # a plain attribute, which a Module's own type does not declare
    setattr(root, "config", config)  # noqa: B010
    for module in root.modules():
        if not isinstance(module, nn.Linear) or type(module) is nn.Linear or module._forward_hooks:
            continue
        if "Router" not in own_class(module).__name__:  # whose forward chooses, too
            module.__class__ = nn.Linear


def check_tp_plan(config: PretrainedConfig) -> None:
    """Raise ConfigError for a Hugging Face config without a tensor-parallel plan."""
    if not getattr(config, "base_model_tp_plan", None):
        raise ConfigError(
            plan_codes.STRATEGY_DEEPSPEED_TP_PLAN(
                "AutoTP needs the model's own tensor-parallel plan, but this model has none",
                "training.deepspeed",
                f"model_type {getattr(config, 'model_type', None)} with tensor_parallel.autotp_size",
                "use a model that has one (llama, qwen2, mistral, gemma2, …), or autotp_size: 1",
            )
        )


def unsharded(root: RootModule) -> list[str]:
    """Return what is wrong with the sharding: no layer replaced, weights of full size, or a sharded head."""
    replaced = [m for m in root.modules() if type(m).__module__.startswith("deepspeed.module_inject")]
    if not replaced:
        return ["AutoTP has replaced no layer: every rank computes the complete model"]
    whole = [
        name
        for name, p in root.named_parameters()
        if (cut := getattr(p, "ds_autotp_universal_checkpoint_meta", None)) is not None
        and cut["partition_dim"] is not None
        and tuple(getattr(p, "ds_shape", p.shape)) == tuple(cut["original_shape"])
    ]
    wrong = [f"AutoTP has left {len(whole)} weights unsharded ({whole[0]}, …)"] if whole else []
    head = root.hf.get_output_embeddings()
    if head is not None and type(head).__module__.startswith("deepspeed"):
        wrong.append("AutoTP has sharded the head, whose complete weight the loss needs")
    return wrong
