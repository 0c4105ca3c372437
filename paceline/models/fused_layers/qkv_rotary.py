"""Query, key and value of Llama-like attention as one autograd function: three projections and the rotary
embedding, keeping only the input.

A module is swapped only if it has exactly ``q_proj``, ``k_proj``, ``v_proj``, ``o_proj`` and its output on a
probe equals this one's. The probe also records the options that it passes to the attention function (scaling,
window). Outside of a packed forward the module's own code runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from paceline.models.attention.packed_attention import PACKED_ATTENTION, packed_attention
from paceline.models.attention.sequence_info import PROJECTED, recording, row_kernels_of, sequence_info_of
from paceline.models.compute_dtype import (
    ComputeLinear,
    activation_dtype,
    compute_copy,
    product_dtype,
    traced_linear,
    weight_gradient,
)
from paceline.models.module_tensors import stand_in_values, widened
from paceline.models.replace_forward import replace_forward
from paceline.models.triton_kernels import operators
from paceline.models.typed_autograd import Function, FunctionContext

if TYPE_CHECKING:
    from transformers import Cache

    from paceline.protocols.model import HFModel

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_FAR = 1e3  # times a normal probe: beyond what a class may clip


class PlainAttention(nn.Module):
    """The attributes of a Llama-like attention that are read here; only a type."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    head_dim: int
    paceline_passes: Mapping[str, Any]  # set when it is fused: the options of its attention call


class _QkvContext(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor, Tensor]  # x, cos, sin
    copies: list[Tensor]  # of the three weights
    wanted: list[torch.dtype]  # of the weights' gradients
    product: torch.dtype
    kernel: bool


class RotaryQkv(Function):
    """x [1, T, H] -> query [1, heads, T, D], key and value [1, key heads, T, D], laid out as [1, T, heads,
    D].

    Rotary embedding as in Su et al. 2021 (arXiv:2104.09864) with halves: y = x·cos + (-x2, x1)·sin; the
    backward is the same rotation with -sin. ``cos`` and ``sin`` are [1, T, D] with equal halves. ``kernel``:
    query and key are rotated by one Triton kernel.
    """

    @staticmethod
    def forward(
        ctx: _QkvContext,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        width: int,
        product: torch.dtype,
        kernel: bool,
        *weights_and_biases: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """``weights_and_biases``: weights q, k, v, then biases q, k, v (or None)."""
        weights, biases = weights_and_biases[:3], weights_and_biases[3:]
        # [T, H]: three products of one input, read from one tensor.
        rows = x.flatten(0, -2).to(product)
        copies, outs = [], []
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            assert weight is not None
            # Kept by reference: the backward multiplies with the values of this forward.
            copies.append(compute_copy(weight))
            turned = copies[i].to(product).t()
            out = (
                rows.mm(turned) if bias is None else torch.addmm(compute_copy(bias).to(product), rows, turned)
            )
            heads = out.view(1, rows.shape[0], -1, width)
            # Query and key only: positions enter the scores, not the values.
            outs.append(rotate(heads, cos, sin) if i < 2 and not kernel else heads)
        if kernel:
            outs[:2] = _rotated(outs[0], outs[1], cos, sin, 1.0)
        ctx.save_for_backward(x, cos, sin)
        ctx.copies, ctx.product, ctx.kernel = copies, product, kernel
        ctx.wanted = [weight.dtype for weight in weights if weight is not None]
        return tuple(out.to(x.dtype).transpose(1, 2) for out in outs)

    @staticmethod
    def backward(ctx: _QkvContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Rotate back, then sum the three linear backwards into one gradient of x."""
        x, cos, sin = ctx.saved_tensors
        product = ctx.product
        rows = x.flatten(0, -2).to(product)
        need_weights, need_biases = ctx.needs_input_grad[6:9], ctx.needs_input_grad[9:]
        total: Tensor | None = None
        weight_grads: list[Tensor | None] = []
        bias_grads: list[Tensor | None] = []
        head_grads = [grad.transpose(1, 2).to(product) for grad in grads]
        if ctx.kernel:
            head_grads[:2] = _rotated(head_grads[0], head_grads[1], cos, sin, -1.0)
        for i, heads in enumerate(head_grads):
            # A rotation's transpose is its inverse: the same formula with -sin.
            turned = rotate(heads, cos, sin, -1.0) if i < 2 and not ctx.kernel else heads
            g = turned.reshape(rows.shape[0], -1)
            weight_grads.append(weight_gradient(g, rows, ctx.wanted[i]) if need_weights[i] else None)
            bias_grads.append(_wide(g.sum(0)) if need_biases[i] else None)
            if ctx.needs_input_grad[0]:
                copy = ctx.copies[i].to(product)
                # One gradient of x, added up inside the product instead of three tensors and two sums.
                total = g.mm(copy) if total is None else total.addmm_(g, copy)
        grad_x = None if total is None else total.to(x.dtype).view_as(x)
        return grad_x, None, None, None, None, None, *weight_grads, *bias_grads


def rotate(x: Tensor, cos: Tensor, sin: Tensor, direction: float = 1.0) -> Tensor:
    """Rotate x [1, T, heads, D] by cos, sin [1, T, D] (backwards for direction -1), in three passes over
    memory.
    """
    half = x.shape[-1] // 2
    c, s = cos.unsqueeze(2), sin.unsqueeze(2)
    # x·cos whole, then both halves add x2 or x1 times sin in place: no tensor of (-x2, x1).
    out = x * c.to(x.dtype)
    s = s.to(x.dtype)
    out[..., :half].addcmul_(x[..., half:], s[..., :half], value=-direction)
    out[..., half:].addcmul_(x[..., :half], s[..., half:], value=direction)
    return out


def _rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, direction: float) -> tuple[Tensor, Tensor]:
    """``rotate`` of query and key [1, T, heads, D] in one kernel."""
    q, k = (x[0] if x.stride(-1) == 1 else x[0].contiguous() for x in (query, key))
    q, k = operators.rotary(q, k, cos[0], sin[0], direction)
    return q[None], k[None]


def _wide(grad: Tensor) -> Tensor:
    return grad.float() if grad.dtype in (torch.bfloat16, torch.float16) else grad


class FusedAttention(PlainAttention):
    """The class that an attention module is swapped to; parameters, submodules and names stay."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """[1, T, H] -> [1, T, H]."""
        turns = position_embeddings is not None and position_embeddings[0].shape[-1] == self.head_dim
        # A cache, or rotary embeddings of part of a head: the class's own code knows them.
        if sequence_info_of(self) is None or past_key_values is not None or not turns:
            return super().forward(
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
        assert position_embeddings is not None
        query, key, value = _project(self, hidden_states, *position_embeddings)
        out, _ = packed_attention(self, query, key, value, None, **self.paceline_passes)
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), None


def fuse_attention(model: HFModel, stand_in: bool = False) -> int:
    """Swap the attention modules of ``model`` that compute exactly this; return how many. ``stand_in``: as
    ``fuse_norms``.
    """
    if model.config._attn_implementation != PACKED_ATTENTION:
        return 0
    count = 0
    for module in model.modules():
        if isinstance(module, FusedAttention) or not _looks_plain(module):
            continue
        with stand_in_values(module, stand_in), widened(module):
            passes = _passes(module)
        if passes is not None:
            module.paceline_passes = passes
            module.__class__ = replace_forward(FusedAttention, type(module))
            count += 1
    return count


def _project(module: PlainAttention, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    layers = module.q_proj, module.k_proj, module.v_proj
    dtype = activation_dtype(layers[0].weight)
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    # Traced, plain operations are fused by inductor; what the function saves, it saves in eager runs.
    if torch.compiler.is_compiling():
        return _traced(module, x.to(dtype), cos, sin)
    kernels = None if x.device.type == "cpu" else row_kernels_of(module)
    kernel = kernels is not None and kernels.triton("rotary", x, weights[0], cos)
    product = product_dtype(dtype, x.device)
    return RotaryQkv.apply(x.to(dtype), cos, sin, module.head_dim, product, kernel, *weights, *biases)


def _traced(module: PlainAttention, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """``RotaryQkv`` in plain operations, for torch.compile to fuse."""
    layers = module.q_proj, module.k_proj, module.v_proj
    query, key, value = (
        traced_linear(x, layer.weight, layer.bias, rounds=False).view(1, x.shape[1], -1, module.head_dim)
        for layer in layers
    )
    c, s = (turn.unsqueeze(2).to(query.dtype) for turn in (cos, sin))
    turned = (
        one * c + torch.cat((-one.chunk(2, -1)[1], one.chunk(2, -1)[0]), -1) * s for one in (query, key)
    )
    return tuple(one.to(x.dtype).transpose(1, 2) for one in (*turned, value))


def _looks_plain(module: nn.Module) -> TypeGuard[PlainAttention]:
    owners = {
        name
        for name, m in module._modules.items()
        if m is not None and next(m.parameters(), None) is not None
    }
    return (
        owners == {*_PROJECTIONS, "o_proj"}
        and all(type(getattr(module, name)) in (nn.Linear, ComputeLinear) for name in owners)
        and not module._parameters
        and isinstance(getattr(module, "head_dim", None), int)
        and not getattr(module, "attention_dropout", 0.0)
    )


def _projects_far(module: PlainAttention, probe: Tensor, turn: tuple[Tensor, Tensor]) -> bool:
    """Whether ``module`` projects large values like the fused form; OLMo clips them."""
    with recording(module) as record:
        module(probe, position_embeddings=turn, attention_mask=None)
    pairs = zip(record[PROJECTED], _project(module, probe, *turn), strict=True)
    return all(torch.allclose(b, a, rtol=1e-4, atol=1e-5 * float(a.abs().max())) for a, b in pairs)


@torch.no_grad()
def _passes(module: PlainAttention) -> dict[str, Any] | None:
    """Return the options that the module passes to the attention function, or None if its output on a probe
    differs from the fused one.
    """
    weight = module.q_proj.weight
    # A probe needs values.
    if weight.device.type == "meta":
        return None
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(1, 5, weight.shape[1], generator=generator).to(weight)
    # equal halves, as Llama's rotary embedding makes them
    angles = torch.rand(1, 5, module.head_dim // 2, generator=generator).repeat(1, 1, 2).to(weight)
    turn = angles.cos(), angles.sin()
    try:
        # The module's own output, with the options of its attention call recorded.
        with recording(module) as record:
            expected = module(probe, position_embeddings=turn, attention_mask=None)[0]
        record.pop(PROJECTED)
        passes = {
            k: v for k, v in record.items() if (v is not None or k == "sliding_window") and k != "dropout"
        }
        # The fused output with those options.
        query, key, value = _project(module, probe, *turn)
        out, _ = packed_attention(module, query, key, value, None, **passes)
        fused = module.o_proj(out.reshape(1, 5, -1))
        if not _projects_far(module, probe * _FAR, turn):
            return None
    except (RuntimeError, TypeError, AttributeError, KeyError):  # other arguments or shapes: not swapped
        return None
    # Tensors among the options belong to the probe, not to every later call.
    if not all(isinstance(v, (int, float, bool, type(None))) for v in passes.values()):
        return None
    scale = float(expected.abs().max())
    return passes if scale > 0 and torch.allclose(fused, expected, rtol=1e-4, atol=1e-5 * scale) else None
