"""``nn.LayerNorm`` of 16-bit activations with fp32 weights, on every device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.typed_autograd import Function, FunctionContext
from paceline.plan.hardware.device_kinds import kind_of


class ComputeLayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` on low-precision input with fp32 parameters and statistics."""

    def forward(self, input: Tensor) -> Tensor:
        """[.., H] -> [.., H] in the input's dtype; computed in fp32."""
        shape = list(self.normalized_shape)
        weight: Tensor | None = self.weight
        bias: Tensor | None = self.bias
        if weight is None or weight.dtype == input.dtype or kind_of(input.device.type).mixed_norms:
            return F.layer_norm(input, shape, weight, bias, self.eps)
        wide = torch.promote_types(weight.dtype, input.dtype)
        weight, bias = weight.to(wide), None if bias is None else bias.to(wide)
        if torch.compiler.is_compiling():
            return F.layer_norm(input.to(wide), shape, weight, bias, self.eps).to(input.dtype)
        return WidenedLayerNorm.apply(input, shape, weight, bias, self.eps)


class _Context(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # input, weight, mean, 1 / std, bias
    shape: list[int]


class WidenedLayerNorm(Function):
    """Layer norm in the dtype of its weights, in which nothing of the input's size is kept."""

    @staticmethod
    def forward(
        ctx: _Context, x: Tensor, shape: list[int], weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        """x [.., H] in low precision, weight and bias [H] in fp32 -> [.., H] in low precision."""
        wide, mean, rstd = torch.native_layer_norm(x.to(weight.dtype), shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, rstd, bias)
        ctx.shape = shape
        return wide.to(x.dtype)

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient in its dtype; those of weight and bias in theirs."""
        x, weight, mean, rstd, bias = ctx.saved_tensors
        needs = [ctx.needs_input_grad[i] for i in (0, 2, 3)]
        grads = torch.ops.aten.native_layer_norm_backward(
            grad.to(weight.dtype), x.to(weight.dtype), ctx.shape, mean, rstd, weight, bias, needs
        )
        of_x, of_weight, of_bias = (g if need else None for g, need in zip(grads, needs, strict=True))
        return None if of_x is None else of_x.to(x.dtype), None, of_weight, of_bias, None
