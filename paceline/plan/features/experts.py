"""Mixtures of experts in the plan: adapters on experts, grouped products, and the balance loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic
from paceline.core.units import human_count
from paceline.plan import codes
from paceline.plan.mesh import Mesh
from paceline.plan.model.parameter_list import Parameter, parameters_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec, Combination, Decision

TARGETS_KEY = "lora.target_parameters"


def adapted_experts(shape: ModelShape, adapter: AdapterSpec) -> Iterator[Parameter]:
    """Yield the tensors of fused experts that get an adapter."""
    for parameter in parameters_of(shape):
        if is_adapted(parameter, adapter):
            yield parameter


def is_adapted(parameter: Parameter, adapter: AdapterSpec) -> bool:
    """Whether a parameter is a tensor of fused experts that gets an adapter."""
    name = parameter.name
    return len(parameter.shape) == 3 and any(
        name == target or name.endswith(f".{target}") for target in adapter.target_parameters
    )


def expert_factors(parameter: Parameter, adapter: AdapterSpec) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of peft's A and B for [experts, out, in] (of [experts, in, out] those of B and A)."""
    experts, outside, inside = parameter.shape
    return (adapter.r * experts, inside), (outside, adapter.r * experts)


def check_expert_adapters(run: Combination, shape: ModelShape | None) -> Iterator[Diagnostic]:
    """Yield settings that cannot be combined with an adapter on fused experts."""
    adapter = run.adapter
    if adapter is None or not adapter.target_parameters:
        return
    targets = ", ".join(adapter.target_parameters)
    if adapter.dropout:
        yield codes.PLAN_ADAPTER_EXPERTS(
            "adapters on fused experts have no dropout: peft adds their product to the weight",
            "lora.dropout",
            f"{adapter.dropout:g}",
            "dropout: 0, or leave target_parameters out",
        )
    if adapter.quantization is not None:
        yield codes.PLAN_ADAPTER_EXPERTS(
            "a 4-bit base has no adapters on fused experts",
            "lora.quantization_bit",
            str(adapter.quantization.bits),
            "quantization_bit: null, or leave target_parameters out",
        )
    if run.compiled:
        yield codes.PLAN_ADAPTER_EXPERTS(
            "layers with adapters on fused experts are not compiled",
            "training.torch_compile",
            "true",
            "torch_compile: false",
        )
    listed = shape is not None and shape.exact
    if shape is not None and (shape.mixture is None or (listed and not any(adapted_experts(shape, adapter)))):
        yield codes.PLAN_ADAPTER_EXPERTS(
            f"models of type '{shape.model_type}' have no tensor of fused experts of this name",
            TARGETS_KEY,
            targets,
            "remove target_parameters"
            if shape.mixture is None
            else "target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]",
        )


def expert_decisions(shape: ModelShape | None, adapter: AdapterSpec | None) -> Iterator[Decision]:
    """Yield the plan's decision about adapters on fused experts."""
    if adapter is None or not adapter.target_parameters:
        return
    size = "counted when the model is built"
    if shape is not None and shape.exact:
        count = expert_parameters(shape, adapter)
        size = f"{human_count(count)} parameters, {human_count(4 * count)}B in fp32"
    yield Decision(
        TARGETS_KEY,
        ", ".join(adapter.target_parameters),
        f"{size}; computed on the routed tokens, never as a product of a whole expert; files have peft's"
        " names, a merged export the model's own",
    )


def expert_parameters(shape: ModelShape, adapter: AdapterSpec) -> int:
    """Return the trained parameters of adapters on fused experts."""
    pairs = [expert_factors(p, adapter) for p in adapted_experts(shape, adapter)]
    return sum(a[0] * a[1] + b[0] * b[1] for a, b in pairs)


PRODUCTS, PRODUCT_AN_EXPERT = "experts", "one product an expert"
#: torch has one kernel for all experts of a layer in bfloat16 on these, by the capability's major number
#: (torch 2.13, ``aten/src/ATen/native/cuda/GroupedBlas.cpp``: ``_grouped_mm_cuda``)
ONE_KERNEL_ON, ONE_KERNEL_IN = (9, 10), "bfloat16"


def experts_wait(capability: float | None, compute: str) -> bool:
    """Whether the host waits for the number of tokens of each expert. It waits if a CUDA device of this
    capability (9.0) has no grouped kernel for the dtype ``compute``. False for other devices, whose kernels
    are not known.
    """
    return capability is not None and (compute != ONE_KERNEL_IN or int(capability) not in ONE_KERNEL_ON)


def grouped_decisions(shape: ModelShape | None, capability: float | None, compute: str) -> Iterator[Decision]:
    """Yield the plan's decisions on a mixture's products on a CUDA device."""
    if shape is None or shape.mixture is None or capability is None:
        return
    if experts_wait(capability, compute):
        able = " and ".join(f"{major}.x" for major in ONE_KERNEL_ON)
        yield Decision(
            PRODUCTS,
            PRODUCT_AN_EXPERT,
            f"torch has one kernel for all experts only in {ONE_KERNEL_IN} and of compute capability {able};"
            f" here ({compute}, {capability:.1f}) the host waits for the number of each expert's"
            " tokens, in"
            " every layer",
        )
    else:
        yield Decision(PRODUCTS, "one grouped product", "torch's kernel for all experts of a layer at once")


COEFFICIENT = "training.router_aux_loss_coef"
DOCUMENT, MICRO_BATCH = "document", "micro_batch"


@dataclass(frozen=True)
class RouterLoss:
    """``coefficient`` · the balance loss, over each document or over each micro-batch (``scope``)."""

    coefficient: float
    scope: str


@dataclass(frozen=True)
class RouterOptions:
    """The run's options for routers. ``loss``: None if its coefficient is 0; ``frozen``: routers stay as
    loaded.
    """

    loss: RouterLoss | None
    frozen: bool


def router_options(training: TrainingSection, of_config: float) -> RouterOptions:
    """Return the options as configured. ``of_config``: the coefficient in the model's config."""
    configured = training.router_aux_loss_coef
    coefficient = of_config if configured is None else configured
    loss = RouterLoss(coefficient, training.router_aux_loss_scope) if coefficient else None
    return RouterOptions(loss, training.freeze_router)


def check_router_loss(
    shape: ModelShape | None, loss: RouterLoss | None, mesh: Mesh, *, compiled: bool
) -> Iterator[Diagnostic]:
    """Yield cases without a balance loss: other families, parts of documents or of layers on a rank, compiled
    layers.
    """
    if shape is None or loss is None:
        return
    if shape.family.balance_loss is None:
        yield codes.PLAN_BALANCE_LOSS(
            f"Transformers computes no balance loss of experts for models of type '{shape.model_type}'",
            COEFFICIENT,
            f"{loss.coefficient:g}",
            "remove router_aux_loss_coef",
        )
    for axis, part in (("cp", "a part of each document"), ("pp", "a part of the layers")):
        if getattr(mesh, axis) > 1:
            yield codes.PLAN_BALANCE_LOSS_SPLIT(
                f"the experts' balance loss is over all tokens and layers, but a rank has {part}",
                f"training.parallelism.{axis}_size",
                str(getattr(mesh, axis)),
                f"{axis}_size: 1, or router_aux_loss_coef: 0",
            )
    if compiled:
        yield codes.PLAN_BALANCE_LOSS_SPLIT(
            "the routers' logits cannot be read out of compiled layers, so the balance loss would be lost",
            "training.torch_compile",
            "true",
            "torch_compile: false, or router_aux_loss_coef: 0",
        )


def check_router(shape: ModelShape | None, router: RouterOptions, *, adapters: bool) -> Iterator[Diagnostic]:
    """Yield why no router can be frozen."""
    if router.frozen and (adapters or (shape is not None and shape.mixture is None)):
        yield codes.PLAN_NO_ROUTER(
            "training.freeze_router",
            "true",
            why="only adapters are trained" if adapters else "the model is no mixture of experts",
        )


def router_decisions(shape: ModelShape | None, router: RouterOptions) -> Iterator[Decision]:
    """Yield the plan's decisions on a mixture's balance loss."""
    if shape is None or shape.mixture is None:
        return
    loss = router.loss
    if router.frozen:
        yield Decision("training.freeze_router", "on", "routers stay as loaded; gradients pass through them")
    if loss is not None:
        yield Decision(
            "balance loss", f"{loss.coefficient:g}, over each {_WORDS[loss.scope]}", _WHY[loss.scope]
        )
    elif shape.family.balance_loss is not None:
        yield Decision(
            "balance loss",
            "none",
            "as in Transformers while output_router_logits is false; router_aux_loss_coef: 0.001 adds it",
        )
    elif shape.buffers:
        yield Decision(
            "balance loss",
            "none",
            "this family balances by a bias of its routers, which Transformers never updates: it stays as"
            " loaded, and no loss is added (DeepSeek-V3's sequence-wise loss is not in Transformers)",
        )
    else:
        yield Decision("balance loss", "none", "Transformers computes none for this family")


_WORDS = {DOCUMENT: "document", MICRO_BATCH: "micro-batch"}
_WHY = {
    DOCUMENT: (
        "Transformers' formula on each document, weighted as its loss is: the same under every split of"
        " rows to ranks and micro-batches; fillers do not count; evaluation leaves it out"
    ),
    MICRO_BATCH: (
        "Transformers' and TRL's scope: it depends on how rows are split, so another number of ranks or"
        " another micro-batch trains otherwise; router_aux_loss_scope: document does not"
    ),
}
