"""RMSNorm as one autograd function: keeps no fp32 copies of activations for the backward, and only the output
if it can. On a device it is one kernel: torch's own where weight and input share a dtype and the weight is
plain, else Paceline's in Triton.

A module is swapped only if its class name contains RMSNorm and its output on a probe equals this one's. So
Gemma's ``1 + weight``, or a variant that normalizes another axis, is either recognized or left alone.
"""

from __future__ import annotations

import inspect
import math

import torch
from torch import Tensor, nn

from paceline.models.attention.sequence_info import row_kernels_of
from paceline.models.module_tensors import stand_in_values
from paceline.models.replace_forward import replace_forward
from paceline.models.triton_kernels import launch, operators
from paceline.models.typed_autograd import Function, FunctionContext
from paceline.runtime.device.device import processors

LEAST_GAIN = 1e-3


class _NormContext(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor, Tensor]  # y or x, weight, 1/rms
    offset: float
    from_output: bool


class _KernelContext(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor, Tensor]  # x, weight, 1/rms
    offset: float


class RmsNorm(Function):
    """y = x / sqrt(mean(x²) + eps) · (offset + weight), over the last dim; statistics in fp32 (fp64 for fp64
    input).

    Zhang and Sennrich 2019 (arXiv:1910.07467), equation 4. Backward with n = x·r: dx = r·(g·w −
    n·mean(g·w·n)), dw = Σ g·n.
    """

    @staticmethod
    def forward(ctx: _NormContext, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """x [.., H] -> [.., H] in x's dtype."""
        wide = _wide(x)
        rstd = (
            torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
            .square_()
            .div_(x.shape[-1])
            .add_(eps)
            .rsqrt_()
        )
        gain = _gain(weight, offset)
        y = torch.mul(wide, rstd).mul_(gain).to(x.dtype)
        ctx.offset, ctx.from_output = offset, _invertible(x, gain)
        ctx.save_for_backward(y if ctx.from_output else x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx: _NormContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Recompute the normalized input from what was saved and 1/rms."""
        saved, weight, rstd = ctx.saved_tensors
        g, size = _wide(grad), saved.shape[-1]
        gain = _gain(weight, ctx.offset)
        normed = saved / gain if ctx.from_output else _wide(saved) * rstd
        product = g * normed
        grad_weight = product.reshape(-1, size).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, None, None
        mean = torch.matmul(product, gain.to(product.dtype)).unsqueeze(-1).div_(-size)
        grad_x = torch.mul(g, gain, out=product).addcmul_(normed, mean).mul_(rstd)
        return grad_x.to(saved.dtype), grad_weight, None, None


class AtenRmsNorm(Function):
    """RMSNorm by torch's fused kernel: x [.., H] and weight [H] of one dtype, statistics in fp32."""

    @staticmethod
    def forward(ctx: _KernelContext, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[.., H] -> [.., H]."""
        y, rstd = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: _KernelContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x and weight."""
        x, weight, rstd = ctx.saved_tensors
        grad_x, grad_weight = torch.ops.aten._fused_rms_norm_backward(
            grad, x, [x.shape[-1]], rstd, weight, list(ctx.needs_input_grad[:2])
        )
        return grad_x, grad_weight, None


class TritonRmsNorm(Function):
    """RMSNorm by Paceline's kernel: x [.., H] and weight [H] of any dtypes but fp64, statistics in fp32."""

    @staticmethod
    def forward(ctx: _KernelContext, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """[.., H] -> [.., H] in x's dtype."""
        y, rstd = operators.rms_norm(x, weight, eps, offset)
        ctx.save_for_backward(x, weight, rstd)
        ctx.offset = offset
        return y

    @staticmethod
    def backward(ctx: _KernelContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x and weight; the latter is summed over programs in fp32."""
        x, weight, rstd = ctx.saved_tensors
        programs = launch.norm_programs(rstd.shape[0], x.shape[-1], processors(x.device))
        grad_x, partial = operators.rms_norm_backward(grad, x, weight, rstd, ctx.offset, programs)
        # [programs, H]: no atomics, so the order of the sum, and its bits, are fixed.
        grad_weight = partial.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None, None


class FusedRMSNorm(nn.Module):
    """The class that an RMSNorm module is swapped to; keeps the module's parameters, attributes and names."""

    low_precision_ready = True
    paceline_eps: float
    paceline_offset: float
    weight: nn.Parameter

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[.., H] -> [.., H], same dtype."""
        eps, offset = self.paceline_eps, self.paceline_offset
        if torch.compiler.is_compiling():
            return traced_norm(hidden_states, self.weight, eps, offset)
        kernels = None if hidden_states.device.type == "cpu" else row_kernels_of(self)
        if kernels is not None:
            alike = offset == 0.0 and hidden_states.dtype == self.weight.dtype
            if alike and kernels.aten("norm", hidden_states, self.weight):
                return AtenRmsNorm.apply(hidden_states, self.weight, eps)
            narrow = self.weight.shape[0] <= launch.WIDEST
            if narrow and kernels.triton("norm", hidden_states, self.weight):
                return TritonRmsNorm.apply(hidden_states, self.weight, eps, offset)
        return RmsNorm.apply(hidden_states, self.weight, eps, offset)


def traced_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """``RmsNorm`` in plain operations, for torch.compile to fuse: [.., H] -> [.., H] in x's dtype."""
    wide = _wide(x)
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * rstd * _gain(weight, offset)).to(x.dtype)


def fuse_norms(model: nn.Module, stand_in: bool = False) -> int:
    """Swap the RMSNorms of ``model`` that compute exactly this, changing nothing else; return how many.

    ``stand_in``: probe weights on meta with substitute values.
    """
    verdicts: dict[tuple[type, float, int], float | None] = {}
    count = 0
    for module in model.modules():
        kind, eps = type(module), _eps(module)
        # Only a plain weight and one input; one probe per class, eps and width.
        # The name only selects; the probe decides.
        if "RMSNorm" not in kind.__name__ or isinstance(module, FusedRMSNorm) or eps is None:
            continue
        weight = module._parameters.get("weight")
        if len(module._parameters) != 1 or module._buffers or weight is None or weight.dim() != 1:
            continue
        # a norm that can take a gate as well (Mamba 2's) then computes something else
        if len(inspect.signature(kind.forward).parameters) != 2:
            continue
        key = (kind, eps, weight.shape[0])
        if key not in verdicts:
            with stand_in_values(module, stand_in):
                verdicts[key] = _offset(module, eps)
        offset = verdicts[key]
        if offset is not None:
            module.__class__ = replace_forward(FusedRMSNorm, kind)
            assert isinstance(module, FusedRMSNorm)
            module.paceline_eps, module.paceline_offset = eps, offset
            count += 1
    return count


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _invertible(x: Tensor, gain: Tensor) -> bool:
    """Return whether x can be recovered from the output, which the next linear layer keeps anyway.

    True if nothing is rounded in between and no gain is so close to 0 that digits are lost. CPU only, where
    reading the gains does not synchronize.
    """
    exact = x.device.type == "cpu" and x.dtype == gain.dtype and x.dtype.itemsize >= 4
    return exact and not math.isinf(LEAST_GAIN) and float(gain.abs().amin()) > LEAST_GAIN


def _gain(weight: Tensor, offset: float) -> Tensor:
    return weight if offset == 0.0 else weight + offset


def _eps(module: nn.Module) -> float | None:
    for name in ("variance_epsilon", "eps", "norm_eps"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


@torch.no_grad()
def _offset(module: nn.Module, eps: float) -> float | None:
    """Return the offset (0 or 1) for which the fused form equals ``module`` on a probe, or None."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    if weight.device.type == "meta":
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, weight.shape[0], generator=generator).to(weight)
    x *= torch.tensor([[1.0], [1.0], [1.0], [1e-3], [1e3]]).to(x)  # where eps is added, what is clipped
    kept = weight.clone()
    # not all ones: distinguishes w, 1 + w and no weight
    weight.copy_(torch.rand(weight.shape[0], generator=generator).to(weight) + 0.5)
    try:
        expected = module(x)
        for offset in (0.0, 1.0):
            fused = RmsNorm.apply(x, weight, eps, offset)
            if torch.allclose(fused, expected, rtol=1e-5, atol=1e-6):
                return offset
    except (RuntimeError, TypeError):  # other arguments (gated norms): not swapped
        return None
    finally:
        weight.copy_(kept)
    return None
