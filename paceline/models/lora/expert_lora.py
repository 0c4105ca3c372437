"""LoRA on fused experts (peft's ``target_parameters``), computed on the routed tokens.

peft wraps the module that holds the experts of a layer once for each of its parameters. In each forward it
adds the product B A of every expert to the weight. Here the wrappers stay (names and files are peft's), but
the product is never formed. Sorted by expert, a token's row x gives x Wᵀ + scale · (x Aᵀ) Bᵀ in grouped
matrix products, through Transformers' own interface for experts (``ALL_EXPERTS_FUNCTIONS``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.lora.names import NAME

if TYPE_CHECKING:
    from peft.tuners.lora.layer import ParamWrapper

    from paceline.protocols.model import HFModel

IMPLEMENTATION = "paceline_adapters"
_ADAPTERS = "_paceline_adapters"
_ALIGNED = 16  # bytes: a row of a grouped product's operand is a multiple of these


class FusedExperts(Protocol):
    """A module with all experts of a layer, as Transformers decorates it (``use_experts_implementation``)."""

    num_experts: int
    has_gate: bool
    has_bias: bool
    has_post_expert_norm: bool
    is_transposed: bool
    _is_expert_parallel: bool

    def act_fn(self, x: Tensor) -> Tensor: ...

    def _apply_gate(self, x: Tensor) -> Tensor: ...

    def post_expert_norm(self, x: Tensor) -> Tensor: ...


def route_adapters(hf: HFModel) -> int:
    """Have every wrapped module of experts compute its adapters on the routed tokens; return how many there
    are. Raises ConfigError ``models.adapter_target`` for a parameter of anything else.
    """
    from peft.tuners.lora.layer import ParamWrapper
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
    # peft nests the wrappers, one a parameter; only the outermost of each nest is visited.
    inner = {id(m.base_layer) for m in hf.modules() if isinstance(m, ParamWrapper)}
    count = 0
    for name, outer in hf.named_modules():
        if not isinstance(outer, ParamWrapper) or id(outer) in inner:
            continue
        wrappers, base = [outer], outer.base_layer
        while isinstance(base, ParamWrapper):
            wrappers, base = [*wrappers, base], base.base_layer
        flat = next((w for w in wrappers if w.num_experts == 1), None)
        if not hasattr(base, "_apply_gate") or flat is not None:
            raise ConfigError(
                codes.MODELS_ADAPTER_TARGET(
                    "target_parameters can only name parameters of fused experts",
                    "lora.target_parameters",
                    f"{name}.{(flat or outer).parameter_name} ({type(base).__name__})",
                    "target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]",
                )
            )
        vars(base)[_ADAPTERS] = {w.parameter_name: w for w in wrappers}
        vars(outer)["forward"] = partial(_call, base)
        vars(base)["config"]._experts_implementation = IMPLEMENTATION
        count += 1
    return count


def compute_in_float64(hf: HFModel) -> None:
    """Have fused experts compute in float64, for which torch has no grouped product on a CPU."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    for module in hf.modules():
        if hasattr(module, "_apply_gate") and "config" in vars(module):
            ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
            vars(module)["config"]._experts_implementation = IMPLEMENTATION


def experts_forward(self: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Hidden states [T, H], the experts chosen for each token [T, k] and their weights [T, k] -> [T, H]: the
    arithmetic of Transformers' ``grouped_mm_experts_forward``, with the adapters of ``self``.

    If the layer has only some of the experts, tokens of the others (index beyond the last) are left out.
    """
    layer = cast(FusedExperts, self)
    if layer._is_expert_parallel:
        return _of_some(self, hidden, chosen, weights)
    # [T · k] choices, sorted by expert, and the place of each in the flat table.
    experts, order = torch.sort(chosen.reshape(-1))
    # ends[e]: the end of expert e's rows, which the grouped product takes as int32.
    ends = torch.searchsorted(experts, torch.arange(layer.num_experts, device=experts.device), right=True)
    ends = ends.to(torch.int32)
    # Row i of the flat table belongs to token i // k.
    states = hidden[order // chosen.shape[-1]]
    states = _linear(self, "gate_up_proj" if layer.has_gate else "up_proj", states, experts, ends)
    states = layer._apply_gate(states) if layer.has_gate else layer.act_fn(states)
    states = _linear(self, "down_proj", states, experts, ends)
    if layer.has_post_expert_norm:
        states = layer.post_expert_norm(states)
    states = states * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    # The inverse permutation.
    back[order] = torch.arange(order.numel(), device=order.device)
    return states[back].view(*chosen.shape, -1).sum(dim=1).to(hidden.dtype)


def _of_some(self: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """One expert at a time, only for float64; adapters are not shared."""
    layer, out = cast(FusedExperts, self), torch.zeros_like(hidden)
    for expert in range(layer.num_experts):
        # An index beyond the last expert matches none.
        token, choice = torch.where(chosen == expert)
        states = _one(self, "gate_up_proj" if layer.has_gate else "up_proj", hidden[token], expert)
        states = layer._apply_gate(states) if layer.has_gate else layer.act_fn(states)
        states = _one(self, "down_proj", states, expert)
        if layer.has_post_expert_norm:
            states = layer.post_expert_norm(states)
        out = out.index_add(0, token, states * weights[token, choice, None])
    return out


def _one(layer: nn.Module, name: str, x: Tensor, expert: int) -> Tensor:
    weight = getattr(layer, name)[expert]
    out = x @ (weight if cast(FusedExperts, layer).is_transposed else weight.t())
    return out + getattr(layer, f"{name}_bias")[expert] if cast(FusedExperts, layer).has_bias else out


def factors_of(a: Tensor, b: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Peft's weights A [r · E, in] and B [out, r · E] -> A [E, r, in], B [E, out, r]."""
    return a.reshape(experts, -1, a.shape[-1]), b.reshape(b.shape[0], -1, experts).permute(2, 0, 1)


def wrapped_parameters(hf: HFModel, module: str, targets: Sequence[str]) -> list[str]:
    """Return the parameters of ``module`` that ``targets`` name, in the order in which peft wraps them: the
    last is the outermost wrapper.
    """
    names = [name for name, _ in hf.get_submodule(module).named_parameters(recurse=False)]
    return [
        n for n in names if any(f"{module}.{n}" == t or f"{module}.{n}".endswith(f".{t}") for t in targets)
    ]


def experts_parameter(hf: HFModel, targets: Sequence[str], adapted: str) -> str:
    """Return the parameter of the adapter ``adapted``: a module's name, with a ``.base_layer`` for each
    wrapper around it.
    """
    module = adapted.replace(".base_layer", "")
    return f"{module}.{wrapped_parameters(hf, module, targets)[-1 - adapted.count('.base_layer')]}"


def is_transposed(hf: HFModel, adapted: str) -> bool:
    """Whether the experts' weights are [in, out]."""
    return cast(FusedExperts, hf.get_submodule(adapted.replace(".base_layer", ""))).is_transposed


@torch.no_grad()
def merge_experts(
    transposed: bool, factor: float, adapted: str, weight: Tensor, trained: Mapping[str, Tensor]
) -> None:
    """Add the adapter ``adapted`` to the weight of its experts, an expert at a time."""
    a, b = (trained[f"{adapted}.lora_{letter}.weight"].to(weight) for letter in "AB")
    for expert, (one_a, one_b) in enumerate(zip(*factors_of(a, b, weight.shape[0]), strict=True)):
        # [out, in]
        delta = (one_b @ one_a).mul_(factor)
        weight[expert].add_(delta.t() if transposed else delta)


def is_experts(hf: HFModel, adapted: str) -> bool:
    """Whether the adapter of this name is one of fused experts."""
    return hasattr(hf.get_submodule(adapted.replace(".base_layer", "")), "_apply_gate")


def _call(base: nn.Module, *args: Tensor, **kwargs: Tensor) -> Tensor:
    """Call the experts module itself, where engines' hooks are, not peft's wrappers."""
    out: Tensor = base(*args, **kwargs)
    return out


def _linear(layer: nn.Module, name: str, x: Tensor, experts: Tensor, ends: Tensor) -> Tensor:
    """Rows [S, in] sorted by expert -> [S, out]: each expert's linear layer, with its adapter."""
    weight = getattr(layer, name)
    out = _grouped(x, weight if cast(FusedExperts, layer).is_transposed else weight.transpose(-2, -1), ends)
    for a, b, factor in _active(layer, name):
        rank = a.shape[1]
        # The rank is an inner dim of both products, whose rows must be aligned.
        missing = -rank % (_ALIGNED // x.element_size())  # zeros that change nothing
        down = pad(a.to(x.dtype), (0, 0, 0, missing)).transpose(-2, -1)
        up = pad(b.to(x.dtype), (0, missing)).transpose(-2, -1).contiguous()
        out = out + factor * _grouped(_grouped(x, down, ends), up, ends)
    if cast(FusedExperts, layer).has_bias:
        out = out + getattr(layer, f"{name}_bias")[experts]
    return out


def _active(layer: nn.Module, name: str) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield (A [E, r, in], B [E, out, r], scale) of the parameter's adapter, unless it is switched off."""
    wrappers: Mapping[str, ParamWrapper] = vars(layer).get(_ADAPTERS, {})
    wrapper = wrappers.get(name)
    if wrapper is not None and not wrapper._disable_adapters:
        a, b = (cast(Tensor, part[NAME].weight) for part in (wrapper.lora_A, wrapper.lora_B))
        yield *factors_of(a, b, wrapper.num_experts), float(wrapper.scaling[NAME])


def _grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows [S, in] in groups that end at ``ends``, weights [E, in, out] -> [S, out]."""
    from transformers.integrations import moe

    if x.dtype == torch.float64:  # torch's grouped product has none
        out: Tensor = torch.ops.transformers.grouped_mm_fallback(x, weight, ends)
        return out
    return moe._grouped_mm(x, weight, ends)
