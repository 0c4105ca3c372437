"""LoRA on fused experts (``lora.target_parameters``) in the plan: sizes, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic
from paceline.core.units import human_count
from paceline.plan import codes
from paceline.plan.model.parameter_list import Parameter, parameters_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision
from paceline.plan.plan_sections import AdapterSpec
from paceline.plan.specs.feature_combination import Combination

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
    """Yield what an adapter on fused experts cannot be combined with."""
    adapter = run.adapter
    if adapter is None or not adapter.target_parameters:
        return
    found = ", ".join(adapter.target_parameters)
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
            found,
            "target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]",
        )


def expert_decisions(shape: ModelShape | None, adapter: AdapterSpec | None) -> Iterator[Decision]:
    """Yield the plan's decision about adapters on fused experts."""
    if adapter is None or not adapter.target_parameters:
        return
    size = "counted when the model is built"
    if shape is not None and shape.exact:
        count = expert_parameters(shape, adapter)
        size = f"{human_count(count)} parameters, {human_count(4 * count)}B in fp32"
    why = (
        f"{size}; computed on the routed tokens, never as a product of a whole expert; files have peft's"
        " names, a merged export the model's own"
    )
    yield Decision(TARGETS_KEY, ", ".join(adapter.target_parameters), why)


def expert_parameters(shape: ModelShape, adapter: AdapterSpec) -> int:
    """Return the trained parameters of adapters on fused experts."""
    pairs = [expert_factors(p, adapter) for p in adapted_experts(shape, adapter)]
    return sum(a[0] * a[1] + b[0] * b[1] for a, b in pairs)
