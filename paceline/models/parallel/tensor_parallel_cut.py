"""How a model is cut for tensor parallelism, and what cannot be cut.

The plan is that of its Hugging Face config (``base_model_tp_plan``, with the styles of transformers 5),
or one of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from paceline.core.diagnostics import Code
from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.parallel import tensor_parallel_layers, tensor_parallel_lora
from paceline.models.parallel.tensor_parallel_layers import EXPERTS
from paceline.models.role_module import RoleModule
from paceline.models.vision.whole_model import text_model
from paceline.plan import codes as plan_codes
from paceline.plan.model.family import composites, family_of
from paceline.protocols.model import RootModule

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.protocols.model import HFModel

COLWISE, ROWWISE = ("colwise", "colwise_gather_output"), ("rowwise", "rowwise_split_input")
OWN_HEADS = "replicated_with_grad_allreduce"
LATENT = "mla_kv_a_proj"  # its output is the latent of all heads and a key that they share
STYLES = (*COLWISE, *ROWWISE, OWN_HEADS, LATENT, EXPERTS)
#: What latent attention computes before it has heads: whole on every rank, for its own heads.
_BEFORE_HEADS = frozenset({"q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm"})
TP_SIZE = "training.parallelism.tp_size"


def tensor_parallel_plan(config: PreTrainedConfig) -> dict[str, str]:
    """Return module pattern (``layers.*.mlp.up_proj``, relative to the trunk) -> style, from a Hugging Face
    config object.

    Raises ConfigError ``models.tp_no_plan`` if the model has no plan, ``models.tp_style`` if it uses a style
    that is not supported.
    """
    text = config.get_text_config()
    plan: Mapping[str, str] = getattr(text, "base_model_tp_plan", None) or {}
    plan = plan or family_of(text.model_type).tp_plan or _plan_of_same(text.model_type)
    if getattr(text, "slow_but_exact", False) and getattr(text, "pretraining_tp", 1) > 1:
        raise refused(
            plan_codes.MODELS_TP_STYLE,
            "this model's class does not compute with shards of its weights",
            f"model_type {text.model_type}: slow_but_exact reads the weights in pieces of its own",
            "slow_but_exact: false in the model's config.json, or fsdp without tp_size",
        )
    if not plan:
        raise refused(
            plan_codes.MODELS_TP_NO_PLAN,
            "this model has no tensor-parallel plan",
            f"model_type {text.model_type}",
            "fsdp without tp_size shards any model; llama, qwen2, qwen3, mistral, gemma, phi3, … have a plan",
        )
    # Before the check of styles: the entries of single experts have styles of their own.
    plan = tensor_parallel_layers.plan_without_experts(plan)
    unknown = {pattern: style for pattern, style in plan.items() if style not in STYLES}
    if unknown:
        pattern, style = next(iter(unknown.items()))
        raise refused(
            plan_codes.MODELS_TP_STYLE,
            "this model's tensor-parallel plan uses a style that is not supported",
            f"model_type {text.model_type}: {pattern} is {style}",
            "use fsdp without tp_size",
        )
    return dict(plan)


def _plan_of_same(kind: str) -> Mapping[str, str]:
    """Return the plan of the causal class that computes a text as a whole model does (Qwen3 for Qwen3-VL's).
    Its layers have the same names. ``kind``: the text type; empty if there is none.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    composite = composites().get(kind.removesuffix("_text"))
    if composite is None or not composite.text:
        return {}
    return CONFIG_MAPPING[composite.text].base_model_tp_plan or {}


@dataclass(frozen=True)
class TensorCut:
    """How a model is sharded.

    styled  module of the trunk -> style
    stack   the decoder layers
    blocks  result of ``_blocks``
    last    the norm after the layers, where sequence parallelism ends (None without it)
    """

    styled: Mapping[str, str]
    stack: nn.ModuleList
    blocks: Mapping[str, bool]
    last: nn.Module | None


def how_cut(root: RootModule, size: int, *, sequence_parallel: bool = False) -> TensorCut:
    """Return how the model of a root module is sharded over ``size`` ranks, from its modules, which may be on
    the meta device.

    Raises ConfigError ``models.tp_*`` or ``models.sp_*`` for what cannot be sharded.
    """
    assert isinstance(root, RoleModule)
    trunk = text_model(root.hf).base_model
    plan = tensor_parallel_plan(trunk.config)
    _check_heads(trunk.config.get_text_config(), plan, size)
    if sequence_parallel and root.attention.layout != "packed":
        raise refused(
            codes.MODELS_SP_PADDED,
            "sequence parallelism shards packed micro-batches, but this model uses one padded row"
            " per document",
            root.attention.reason,
            "sequence_parallel: false",
        )
    if sequence_parallel and root.carries_state:
        raise refused(
            codes.MODELS_SP_PADDED,
            "sequence parallelism shards tokens outside of attention, but this model has layers there that"
            " pass a state from token to token",
            type(root.hf).__name__,
            "sequence_parallel: false",
        )
    styled = _styled(trunk, plan)
    _check_experts(trunk, styled, size, sequence_parallel)
    for name, style in styled.items():
        module = trunk.get_submodule(name)
        linear = isinstance(module, nn.Linear) or tensor_parallel_lora.is_adapted(module)
        if style == LATENT or (style not in (OWN_HEADS, EXPERTS) and not linear):
            raise refused(
                plan_codes.MODELS_TP_STYLE,
                "the tensor-parallel plan names a layer that cannot be sharded as it says",
                f"{name}: {type(module).__name__}",
                "use fsdp without tp_size",
            )
    # the decoder layers: ``layers`` of ``layers.*.mlp.up_proj``
    blocks, stack = _blocks(trunk, styled), trunk.get_submodule(next(iter(plan)).split(".*")[0])
    assert isinstance(stack, nn.ModuleList)
    # A layer that no pattern matches would be whole on every rank; plans of mixtures may share their experts
    # alone.
    shared = {id(trunk.get_submodule(name)) for name, style in styled.items() if style != OWN_HEADS}
    for index, layer in enumerate(() if EXPERTS in styled.values() else stack):
        if not any(id(module) in shared for module in layer.modules()):
            raise refused(
                codes.MODELS_TP_NOT_SHARDED,
                "the model's tensor-parallel plan matches nothing in a layer",
                f"layer {index}",
                "use fsdp without tp_size",
            )
    return TensorCut(styled, stack, blocks, _final_norm(root.hf, trunk, stack) if sequence_parallel else None)


def _styled(trunk: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """Return the plan's styles by module. If the plan shards latent attention's heads, also include its
    layers before the heads.
    """
    # Layer numbers become ``*``, as the plan's patterns have them.
    patterns = {name: re.sub(r"\.\d+(?=\.|$)", ".*", name) for name, _ in trunk.named_modules()}
    styles = {name: plan[pattern] for name, pattern in patterns.items() if pattern in plan}
    heads = {
        n.rpartition(".")[0] for n, style in styles.items() if n.endswith("kv_b_proj") and style in COLWISE
    }
    for parent in heads:
        for child, _ in trunk.get_submodule(parent).named_children():
            if child in _BEFORE_HEADS and styles.get(f"{parent}.{child}", LATENT) == LATENT:
                styles[f"{parent}.{child}"] = OWN_HEADS
    return styles


def _check_experts(trunk: nn.Module, styled: Mapping[str, str], size: int, sequence_parallel: bool) -> None:
    """Raise ConfigError for experts that cannot be shared, and for tokens shared between them."""
    for name in (name for name, style in styled.items() if style == EXPERTS):
        module = trunk.get_submodule(name)
        if why := tensor_parallel_layers.experts_obstacle(module, size):
            raise refused(
                plan_codes.MODELS_TP_STYLE,
                "the experts of this model cannot be divided among tensor-parallel ranks",
                f"{name}: {why}",
                "use a tp_size that divides the experts, or fsdp without tp_size",
            )
        if sequence_parallel:
            raise refused(
                plan_codes.MODELS_TP_STYLE,
                "sequence parallelism shards tokens between blocks, but routers of experts choose for all",
                f"{name}: {type(module).__name__}",
                "sequence_parallel: false",
            )


def _blocks(trunk: nn.Module, styled: Mapping[str, str]) -> dict[str, bool]:
    """Return the parents of styled modules -> whether activations inside are sharded (else every projection
    gathers them).

    Inside a sharded block the plan must cover every layer with parameters: one that it leaves out would
    silently get wrong gradients. Raises ConfigError ``models.tp_plan_incomplete``.
    """
    blocks: dict[str, bool] = {}
    for name, style in styled.items():
        parent = name.rpartition(".")[0]
        # A plain colwise output stays sharded until the block's rowwise layer.
        blocks[parent] = blocks.get(parent, False) or style == "colwise"
    within = {
        id(inner)
        for name in styled
        if tensor_parallel_lora.is_adapted(layer := trunk.get_submodule(name))
        for inner in tensor_parallel_lora.inside(layer)
    }
    for parent, sharded in blocks.items():
        for name, module in trunk.get_submodule(parent).named_modules(prefix=parent):
            left_out = name not in styled and id(module) not in within
            if sharded and left_out and any(p is not None for p in module._parameters.values()):
                raise refused(
                    codes.MODELS_TP_PLAN_INCOMPLETE,
                    "the model's tensor-parallel plan leaves out a layer between sharded ones",
                    f"{name}: {type(module).__name__}",
                    "use fsdp without tp_size",
                )
    return blocks


def _final_norm(hf: HFModel, trunk: nn.Module, stack: nn.Module) -> nn.Module:
    """Return the one module with parameters between the layers and the head. Raises ConfigError
    ``models.sp_final_norm``.
    """
    others = {id(m) for m in (*stack.modules(), hf.get_input_embeddings())}
    norms = [
        m
        for m in trunk.modules()
        if id(m) not in others and any(p is not None for p in m._parameters.values())
    ]
    if len(norms) != 1:
        raise refused(
            codes.MODELS_SP_FINAL_NORM,
            "sequence parallelism ends at the norm after the layers, but this model does not have"
            " exactly one such module",
            f"{type(trunk).__name__}: {', '.join(type(m).__name__ for m in norms) or 'none'}",
            "sequence_parallel: false",
        )
    return norms[0]


def _check_heads(config: PreTrainedConfig, plan: Mapping[str, str], size: int) -> None:
    """Check that the number of attention heads divides, if the plan shards attention by heads. Raises
    ConfigError ``models.tp_heads``.
    """
    if not any("att" in pattern and style == "colwise" for pattern, style in plan.items()):
        return
    for key in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, key, None)
        if count is not None and count % size:
            raise refused(
                codes.MODELS_TP_HEADS,
                f"the attention heads are not divisible by {size} ranks",
                f"{key}: {count}",
                f"use a tp_size that divides {count}, and the other ranks for dp_shard_size",
            )


def refused(code: Code, what: str, found: str, hint: str) -> ConfigError:
    """Return the error for a model that cannot be cut."""
    return ConfigError(code(what=what, where=TP_SIZE, found=found, hint=hint))
