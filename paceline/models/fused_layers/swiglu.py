"""The gated MLP of Llama-like models as one autograd function: saves x, gate and up for the backward, but
neither silu(gate) nor the product. On a device with Triton that of Gemma-like models too, whose activation is
GELU in its tanh form; elsewhere those run their own class.

A module is swapped only if it has plain, bias-free ``gate_proj``, ``up_proj``, ``down_proj`` and its output
on a probe equals this one's. Elementwise work is one Triton kernel on a device, and on a CPU runs over blocks
of rows that stay in the processor's cache.
"""

from __future__ import annotations

from typing import Protocol, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.attention.sequence_info import row_kernels_of
from paceline.models.compute_dtype import (
    ComputeLinear,
    activation_dtype,
    compute_copy,
    product_dtype,
    product_dtype_of,
    traced_linear,
    weight_gradient,
)
from paceline.models.module_tensors import stand_in_values, widened
from paceline.models.replace_forward import replace_forward
from paceline.models.triton_kernels import operators, reference
from paceline.models.typed_autograd import Function, FunctionContext

BLOCK_ELEMENTS = 96 * 1024  # a block of four such fp32 arrays fits in 2 MiB of cache


class GatedMlp(Protocol):
    """A gated MLP of a Llama-like model."""

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def __call__(self, x: Tensor, /) -> Tensor: ...


class _SwiGluContext(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor, Tensor]  # x, gate, up
    copies: tuple[Tensor, ...]  # of the three weights
    wanted: tuple[torch.dtype, ...]  # of the three gradients
    product: torch.dtype
    tanh: bool | None


class SwiGlu(Function):
    """down(act(gate(x)) · up(x)); Shazeer 2020 (arXiv:2002.05202), equation 6. x [.., H], weights [I, H],
    [I, H], [H, I]. ``tanh``: None for SiLU by torch's operations, else Triton's kernel for SiLU (False) or
    tanh GELU (True).
    """

    @staticmethod
    def forward(
        ctx: _SwiGluContext,
        x: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor,
        down_weight: Tensor,
        product: torch.dtype,
        tanh: bool | None = None,
    ) -> Tensor:
        """[.., H] -> [.., H] in x's dtype."""
        copies = tuple(compute_copy(w) for w in (gate_weight, up_weight, down_weight))
        wide = x.flatten(0, -2).to(product)
        gate = wide.mm(copies[0].to(product).t()).to(x.dtype)
        up = wide.mm(copies[1].to(product).t()).to(x.dtype)
        ctx.save_for_backward(x, gate, up)
        ctx.copies, ctx.product, ctx.tanh = copies, product, tanh
        ctx.wanted = (gate_weight.dtype, up_weight.dtype, down_weight.dtype)
        acted = _activate(gate, up, product) if tanh is None else operators.gated(gate, up, tanh)
        out = x.new_empty(x.shape)  # not a view: models may add to the output in place (Llama 4's experts)
        down = copies[2].to(product).t()
        if product == x.dtype:
            torch.mm(acted, down, out=out.view(-1, out.shape[-1]))
        else:
            out.view(-1, out.shape[-1]).copy_(acted.mm(down))
        return out

    @staticmethod
    def backward(ctx: _SwiGluContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Do all elementwise work in one pass over the rows; weights' gradients are fp32 (or x's wider
        dtype).
        """
        x, gate, up = ctx.saved_tensors
        product, (gate_copy, up_copy, down_copy) = ctx.product, ctx.copies
        need_x, need_gate, need_up, need_down = ctx.needs_input_grad[:4]
        g = grad.flatten(0, -2).to(product)
        rows = x.flatten(0, -2).to(product)
        # dLoss/d(acted); the elementwise pass turns it into dLoss/d(up) in place.
        d_up = g.mm(down_copy.to(product))
        if ctx.tanh is None:
            acted, d_gate = torch.empty_like(d_up), torch.empty_like(d_up)
            _backward_blocks(gate, up, acted, d_gate, d_up, product)
        else:
            acted, d_gate = operators.gated_backward(gate, up, d_up, ctx.tanh)
        wanted = ctx.wanted
        grad_down = weight_gradient(g, acted, wanted[2]) if need_down else None
        # Freed before the gradient of x is made, which is the peak.
        del acted
        grad_x = None
        if need_x:
            grad_x = d_gate.mm(gate_copy.to(product)).addmm_(d_up, up_copy.to(product)).to(x.dtype).view_as(x)
        grad_gate = weight_gradient(d_gate, rows, wanted[0]) if need_gate else None
        grad_up = weight_gradient(d_up, rows, wanted[1]) if need_up else None
        return grad_x, grad_gate, grad_up, grad_down, None, None


def _blocks(gate: Tensor) -> list[slice]:
    # A device does all rows at once: its kernels have no use for blocks.
    step = max(1, BLOCK_ELEMENTS // gate.shape[1]) if gate.device.type == "cpu" else max(1, gate.shape[0])
    return [slice(i, min(i + step, gate.shape[0])) for i in range(0, gate.shape[0], step)]


def _activate(gate: Tensor, up: Tensor, product: torch.dtype) -> Tensor:
    """silu(gate) · up in ``product``."""
    acted = torch.empty_like(gate, dtype=product)
    for block in _blocks(gate):
        part = acted[block]
        torch.ops.aten.silu.out(gate[block].to(product), out=part)
        part.mul_(up[block])
    return acted


def _backward_blocks(
    gate: Tensor, up: Tensor, acted: Tensor, d_gate: Tensor, d_up: Tensor, product: torch.dtype
) -> None:
    """Fill ``acted`` and ``d_gate``; ``d_up`` holds dLoss/d(acted) on entry and dLoss/d(up) on return."""
    for block in _blocks(gate):
        g, u, d = gate[block].to(product), up[block].to(product), d_up[block]
        silu = F.silu(g)
        torch.mul(silu, u, out=acted[block])
        torch.ops.aten.silu_backward.grad_input(u.mul(d), g, grad_input=d_gate[block])
        d.mul_(silu)


class FusedSwiGLU(nn.Module):
    """The class that a gated MLP is swapped to; parameters, submodules and names stay."""

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear
    paceline_tanh: bool

    def forward(self, x: Tensor) -> Tensor:
        """[.., H] -> [.., H]."""
        tanh: bool | None = self.paceline_tanh
        kernels = None if x.device.type == "cpu" else row_kernels_of(self)
        if kernels is None or not kernels.triton("activation", x, self.gate_proj.weight):
            if tanh:
                return super().forward(x)  # type: ignore[no-any-return, misc]
            tanh = None
        weights = self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight
        if torch.compiler.is_compiling():
            gate, up = traced_linear(x, weights[0]), traced_linear(x, weights[1])
            product = product_dtype_of(gate)
            return traced_linear(F.silu(gate.to(product)) * up.to(product), weights[2])
        dtype = activation_dtype(weights[0])
        product = product_dtype(dtype, x.device)
        return SwiGlu.apply(x.to(dtype), *weights, product, tanh)


def fuse_mlps(model: nn.Module, stand_in: bool = False) -> int:
    """Swap the gated MLPs of ``model`` that compute exactly this; return how many. ``stand_in``: as
    ``fuse_norms``.
    """
    verdicts: dict[tuple[type, torch.Size], bool | None] = {}
    count = 0
    for module in model.modules():
        if isinstance(module, FusedSwiGLU) or not _looks_gated(module):
            continue
        key = (type(module), module.gate_proj.weight.shape)
        if key not in verdicts:
            assert isinstance(module, nn.Module)
            with stand_in_values(module, stand_in), widened(module):
                verdicts[key] = _tanh(module)
        tanh = verdicts[key]
        if tanh is not None:
            module.__class__ = replace_forward(FusedSwiGLU, type(module))
            assert isinstance(module, FusedSwiGLU)
            module.paceline_tanh = tanh
            count += 1
    return count


def _looks_gated(module: nn.Module) -> TypeGuard[GatedMlp]:
    parts = [module._modules.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
    # The exact type: a subclass (an adapter, a quantized layer) computes something else.
    plain = all(type(p) in (nn.Linear, ComputeLinear) and p.bias is None for p in parts if p is not None)
    no_more = not module._parameters and not module._forward_hooks and not module._forward_pre_hooks
    return plain and no_more and all(p is not None for p in parts)


@torch.no_grad()
def _tanh(module: GatedMlp) -> bool | None:
    """Return whether its activation is tanh GELU (True) or SiLU (False). It is the one whose fused form
    equals the module's own forward on a probe; None if neither does.
    """
    weights = module.gate_proj.weight, module.up_proj.weight, module.down_proj.weight
    if weights[0].device.type == "meta":
        return None
    probe = torch.randn(4, weights[0].shape[1], generator=torch.Generator().manual_seed(0)).to(weights[0])
    probe *= torch.tensor([[3.0], [3.0], [3.0], [3e3]]).to(probe)  # a class may clip what is large
    try:
        expected = module(probe)
    except (RuntimeError, TypeError):  # another signature: not swapped
        return None
    # by row: the large one would hide what differs in the others
    scale = expected.abs().amax(-1, keepdim=True)
    gate, up = (F.linear(probe, weight) for weight in weights[:2])
    for tanh in (False, True):
        fused = (
            F.linear(reference.gated(gate, up, True), weights[2])
            if tanh
            else SwiGlu.apply(probe, *weights, probe.dtype)
        )
        if bool(((scale > 0) & ((fused - expected).abs() <= 1e-4 * expected.abs() + 1e-5 * scale)).all()):
            return tanh
    return None
