"""bf16 and fp16 compute over fp32 master weights (contract 11).

``torch.autocast`` casts every weight at every forward and runs norms in fp32. Here each weight has one
low-precision copy, cast once after each optimizer step (``refresh``). Layers read the copy and return fp32
gradients to the master, so DDP, clipping and the optimizer see fp32 only. Activations are low precision from
the embedding to the head, as under FSDP2's ``MixedPrecisionPolicy(param_dtype)``.

On a CPU without bf16 (fp16) instructions a bf16 matrix product runs at a fifth of the fp32 rate. There
activations are kept in low precision but upcast for each product, which is computed in fp32 with the master
itself and rounded (``product_dtype``). The numbers are the same to bf16's tolerance, at the fp32 rate, and
there are no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.models.recurrent_layers import class_of, state_layers
from paceline.models.replace_forward import (
    keep_forward,
    kept_forward,
    own_class,
    replace_base,
    replace_forward,
)
from paceline.models.typed_autograd import Function, FunctionContext
from paceline.plan.hardware.device_kinds import kind_of

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_COPY, _DTYPE = "_paceline_copy", "_paceline_dtype"


def product_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype that matrix products of ``dtype`` operands are computed in on ``device``."""
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return dtype
    # Without such instructions oneDNN converts operand by operand, far slower than one cast and an fp32
    # product.
    able = torch.cpu.get_capabilities()
    names = (
        ("avx512_bf16", "amx_bf16", "bf16")
        if dtype == torch.bfloat16
        else ("avx512_fp16", "amx_fp16", "fp16")
    )
    return dtype if any(able.get(name, False) for name in names) else torch.float32


def compute_copy(parameter: Tensor) -> Tensor:
    """Return the low-precision copy of a master, or the master itself if it has none."""
    # On the parameter itself, so that kernels that get the parameter alone still find it.
    copy: Tensor | None = getattr(parameter, _COPY, None)
    return parameter if copy is None else copy


def activation_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype of the activations around this parameter; the parameter's own if its module was not
    swapped.
    """
    dtype: torch.dtype = getattr(parameter, _DTYPE, parameter.dtype)
    return dtype


def weight_gradient(grad: Tensor, rows: Tensor, wanted: torch.dtype) -> Tensor:
    """Return gradᵀ · rows, the gradient [out, in] of a weight of dtype ``wanted``, from grad [N, out] and
    rows [N, in] of one dtype. It is computed in that dtype if the weight has it or it is no 16-bit dtype,
    else in fp32.

    CUDA's products sum in fp32 and can return fp32, so no 16-bit result is made and cast.
    """
    low = grad.dtype in (torch.bfloat16, torch.float16)
    if not low or wanted == grad.dtype:
        return grad.t().mm(rows)
    if keeps_fp32_sums(grad):
        return torch.mm(grad.t(), rows, out_dtype=torch.float32)
    # Rounded to 16 bits once a micro-batch, then added up in fp32.
    return grad.t().mm(rows).float()


def keeps_fp32_sums(x: Tensor) -> bool:
    """Whether products of 16-bit matrices like ``x`` can be returned in fp32: by torch's CUDA build, for
    NVIDIA devices.
    """
    # ``out_dtype`` of ``torch.mm`` exists for CUDA alone, and DTensor does not dispatch it.
    able = x.is_cuda and torch.version.hip is None and not isinstance(x, DTensor)
    return able and not torch.compiler.is_compiling()


class _LinearContext(FunctionContext):
    saved_tensors: tuple[Tensor]  # x
    copy: Tensor
    product: torch.dtype
    has_bias: bool
    wanted: torch.dtype  # the master's


class LowPrecisionLinear(Function):
    """x [.., in] and copy in low precision, master weight [out, in] in fp32 -> [.., out] in low precision;
    fp32 gradients to the masters.
    """

    @staticmethod
    def forward(
        ctx: _LinearContext, x: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype
    ) -> Tensor:
        """x @ copy.T + bias."""
        copy = compute_copy(weight)
        low_bias = None if bias is None else compute_copy(bias).to(product)
        ctx.save_for_backward(x)
        ctx.copy, ctx.product, ctx.has_bias, ctx.wanted = copy, product, bias is not None, weight.dtype
        return F.linear(x.to(product), copy.to(product), low_bias).to(x.dtype)

    @staticmethod
    def backward(ctx: _LinearContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute products in ``product``; the weight's gradient is fp32."""
        (x,) = ctx.saved_tensors
        product, copy = ctx.product, ctx.copy
        g = grad.to(product)
        grad_x = g.matmul(copy.to(product)).to(x.dtype) if ctx.needs_input_grad[0] else None
        # [N, out]: all leading dims are tokens.
        rows = g.flatten(0, -2)
        wide = x.to(product).flatten(0, -2)
        grad_weight = weight_gradient(rows, wide, ctx.wanted) if ctx.needs_input_grad[1] else None
        grad_bias = rows.sum(0, dtype=torch.float32) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None


class _EmbeddingContext(FunctionContext):
    saved_tensors: tuple[Tensor]  # ids
    rows: int
    padding_idx: int


class LowPrecisionEmbedding(Function):
    """Rows of the copy; the gradient is a dense fp32 [V, H] for the master."""

    @staticmethod
    def forward(ctx: _EmbeddingContext, ids: Tensor, weight: Tensor, padding_idx: int) -> Tensor:
        """Look up in the copy."""
        ctx.save_for_backward(ids)
        ctx.rows, ctx.padding_idx = weight.shape[0], padding_idx
        return F.embedding(ids, compute_copy(weight)).to(activation_dtype(weight))

    @staticmethod
    def backward(ctx: _EmbeddingContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Scatter-add in fp32."""
        (ids,) = ctx.saved_tensors
        return (
            None,
            # fp32, as frequent tokens add up thousands of rows.
            torch.ops.aten.embedding_dense_backward(grad.float(), ids, ctx.rows, ctx.padding_idx, False),
            None,
        )


class ComputeLinear(nn.Linear):
    """``nn.Linear`` whose forward reads the low-precision copy (by changing the module's class: same
    parameters, same names).
    """

    def forward(self, input: Tensor) -> Tensor:
        """[.., in] -> [.., out] in the copy's dtype."""
        if torch.compiler.is_compiling():
            return traced_linear(input, self.weight, self.bias)
        dtype = activation_dtype(self.weight)
        return LowPrecisionLinear.apply(
            input.to(dtype), self.weight, self.bias, product_dtype(dtype, input.device)
        )


def traced_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, rounds: bool = True) -> Tensor:
    """``LowPrecisionLinear`` in plain operations, for torch.compile: [.., in] -> [.., out], in the
    activations' dtype; with ``rounds`` off in the products' dtype.
    """
    dtype = activation_dtype(weight)
    product = product_dtype_of(x, dtype)
    copy = _traced_copy(weight, dtype).to(product)
    low_bias = None if bias is None else _traced_copy(bias, dtype).to(product)
    out = F.linear(x.to(product), copy, low_bias)
    return out.to(dtype) if rounds else out


def _traced_copy(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    return LowPrecisionCast.apply(parameter) if parameter.dtype != dtype else parameter


def product_dtype_of(x: Tensor, dtype: torch.dtype | None = None) -> torch.dtype:
    """Return ``product_dtype`` for operands like ``x`` (of ``dtype``, if given), in code that dynamo
    traces.
    """
    return _traced_product(dtype or x.dtype, x.device.type)


@torch.compiler.assume_constant_result
def _traced_product(dtype: torch.dtype, device_type: str) -> torch.dtype:
    return product_dtype(dtype, torch.device(device_type))


class ComputeEmbedding(nn.Embedding):
    """``nn.Embedding`` whose forward reads the low-precision copy."""

    def forward(self, input: Tensor) -> Tensor:
        """int64 [..] -> [.., H] in the copy's dtype."""
        return LowPrecisionEmbedding.apply(
            input, self.weight, -1 if self.padding_idx is None else self.padding_idx
        )


class ComputeConv1D(nn.Module):
    """GPT-2's ``Conv1D``, a linear layer whose weight is [in, out], with low-precision copies."""

    weight: nn.Parameter
    bias: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        """[.., in] -> [.., out] in the copy's dtype."""
        copy = LowPrecisionCast.apply(self.weight)
        bias = LowPrecisionCast.apply(self.bias)
        return (torch.matmul(x.to(copy.dtype), copy) + bias).to(activation_dtype(self.weight))


class LowPrecisionCast(Function):
    """The copy of a master as a differentiable value: gradients go to the master in fp32."""

    @staticmethod
    def forward(ctx: FunctionContext, weight: Tensor) -> Tensor:
        """Return the copy (or the master if it has none)."""
        return compute_copy(weight).view_as(weight)

    @staticmethod
    def backward(ctx: FunctionContext, grad: Tensor) -> Tensor:
        """Cast to fp32."""
        return grad.float()


def head_of(hf: HFModel) -> nn.Module | None:
    """Return what a language model computes logits with: the output embedding, and any module between it and
    the trunk (ModernBERT's decoder has one). None where there is no such head.
    """
    head = hf.get_output_embeddings()
    between = [child for child in hf.children() if child is not hf.base_model and child is not head]
    return head if head is None or not between else nn.ModuleList([head, *between])


def low_alone(
    trunk: nn.Module, head: nn.Module | None, dtype: torch.dtype, device: torch.device
) -> frozenset[int]:
    """Return the ids of the frozen parameters that ``LowPrecisionCopies`` keeps on ``device`` only in
    ``dtype``. Swaps classes as ``LowPrecisionCopies`` does; call after the kernels are swapped.
    """
    owners, unknown = weight_owners(trunk, head)
    # Under autocast, and where products need fp32 masters, a frozen weight is read in fp32.
    if unknown or product_dtype(dtype, device) != dtype:
        return frozenset()
    swaps = [(module, _swap_for(module)) for module in owners]
    masters = [p for module, swap in swaps if swap is not None for p in swap(module)]
    return frozenset(id(p) for p in masters if not p.requires_grad)


def weight_owners(trunk: nn.Module, head: nn.Module | None) -> tuple[list[nn.Module], list[str]]:
    """Return the modules with parameters of their own, and the names of the classes that are unknown."""
    modules = [*trunk.modules(), *(() if head is None else head.modules())]
    owners = [m for m in modules if next(m.parameters(recurse=False), None) is not None]
    unknown = {type(m).__name__ for m in owners if _swap_for(m) is None} | _kept_wide(trunk)
    widen = {type(m).__name__ for m in trunk.modules() if _widens(m)}
    return owners, sorted(unknown | widen | {class_of(m) for m in state_layers(trunk)})  # states stay wide


def _kept_wide(trunk: nn.Module) -> set[str]:
    """Return the classes whose own forward is kept and that have parameters which the model's class keeps in
    fp32.

    Rounded copies would choose other experts (Flint's router).
    """
    # Transformers' list of parts of names that stay fp32 in every dtype.
    strict: Sequence[str] = getattr(trunk, "_keep_in_fp32_modules_strict", None) or ()
    classes = set()
    for prefix, module in trunk.named_modules():
        names = [f"{prefix}.{name}" for name, _ in module.named_parameters(recurse=False)]
        if kept_forward(module) is not None and any(word in name for word in strict for name in names):
            classes.add(own_class(module).__name__)
    return classes


def _widens(module: nn.Module) -> bool:
    """Whether a module computes with a mask in the masters' dtype, which would widen its output (GPT's
    attention).
    """
    return type(module).__module__.endswith(".modeling_openai") and type(module).__name__ == "Attention"


class LowPrecisionCopies:
    """The low-precision copies of one model and the class swaps that read them.

    ``cached`` is False if some module with parameters of its own has an unknown class: such a model runs
    under ``torch.autocast`` (``reason`` names the module). With ``copies=False`` an engine (FSDP2's policy,
    DeepSpeed) provides low-precision weights. The swaps then only choose a dtype in which this processor
    computes products fast; an unknown module stays unchanged.
    ``keeps_frozen``: frozen masters stay, since their copies are rounded and they are saved.
    """

    def __init__(
        self,
        trunk: nn.Module,
        head: nn.Module | None,
        dtype: torch.dtype,
        copies: bool = True,
        keeps_frozen: bool = False,
    ) -> None:
        self.dtype = dtype
        self.masters: list[nn.Parameter] = []
        _cast_masks(trunk, dtype)
        # Modules with parameters of their own must all be of a known class.
        owners, unknown = weight_owners(trunk, head)
        self.cached = not unknown
        self.reason = (
            f"no low-precision form of {', '.join(unknown)}: torch.autocast"
            if unknown
            else f"fp32 master weights, {str(dtype).removeprefix('torch.')} activations"
        )
        if not copies:
            self._swap_only(owners, unknown)
            return
        if not self.cached:
            return
        # Swap classes; a tied parameter is one master.
        seen: set[int] = set()
        for module in owners:
            swap = _swap_for(module)
            assert swap is not None
            for parameter in swap(module):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    self.masters.append(parameter)
        for master in self.masters:
            setattr(master, _DTYPE, dtype)
        if all(product_dtype(dtype, master.device) != dtype for master in self.masters):
            self.masters.clear()  # products are computed in fp32 with the masters: no copies
            self.reason += ", products in fp32 (this CPU has no instructions for them)"
        if not keeps_frozen:
            self._drop_frozen_masters()
        self.refresh()

    def _drop_frozen_masters(self) -> None:
        """Replace masters that are frozen from the start (the base under adapters) by their low-precision
        copies: half the bytes, and only the copy is ever read.
        """
        frozen = [master for master in self.masters if not master.requires_grad]
        for master in frozen:
            # The same object in a new dtype: names, ties and hooks stay.
            master.data = master.detach().to(self.dtype)
        self.masters = [master for master in self.masters if master.requires_grad]
        if frozen:
            self.reason += f", frozen weights in {str(self.dtype).removeprefix('torch.')} only"

    def _swap_only(self, owners: list[nn.Module], unknown: list[str]) -> None:
        """Swap to classes that compute in the dtype of the weights they get; keep no copies."""
        self.cached = True
        self.reason = (
            f"{str(self.dtype).removeprefix('torch.')} weights and activations, with fp32 master"
            " weights in the engine"
        )
        if unknown:
            self.reason += f"; {', '.join(unknown)} as the model's own class computes them"
        for module in owners:
            swap = _swap_for(module)
            if swap is not None:
                swap(module)

    def autocast(self, device_type: str) -> torch.autocast | nullcontext[None]:
        """Return the context of a forward: autocast where a class has no low-precision form."""
        return nullcontext() if self.cached else torch.autocast(device_type, dtype=self.dtype)

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the masters into their copies, in place; a model under autocast has none."""
        for master in self.masters:
            copy = getattr(master, _COPY, None)
            # The model was moved since (an offload, a replica).
            if copy is None or copy.device != master.device:
                setattr(master, _COPY, master.detach().to(self.dtype))
            else:
                copy.copy_(master.detach())


def _cast_masks(trunk: nn.Module, dtype: torch.dtype) -> None:
    """Cast the masks that scores are multiplied by, as loading the model in ``dtype`` does."""
    for module in trunk.modules():
        if _widens(module):
            for buffer in module.buffers(recurse=False):
                if buffer.is_floating_point():
                    buffer.data = buffer.data.to(dtype)


def _swap_for(module: nn.Module) -> Callable[[nn.Module], list[nn.Parameter]] | None:
    """Return a function that swaps a module to its low-precision class and returns the masters that need a
    copy; None for an unknown class.
    """
    # Exact classes, or ours: a subclass may compute something else.
    kind = type(module)
    if kind in (nn.Linear, ComputeLinear):
        return lambda m: _become(m, ComputeLinear)
    if isinstance(module, ComputeEmbedding) or kind is nn.Embedding:
        return lambda m: _become(m, kind if isinstance(m, ComputeEmbedding) else ComputeEmbedding)
    if isinstance(
        module, nn.Embedding
    ):  # a subclass that post-processes the rows (Gemma scales them): replace its base class
        return lambda m: _become(m, replace_base(kind, ComputeEmbedding))
    if kind in (nn.LayerNorm, ComputeLayerNorm):
        return lambda m: _become(m, ComputeLayerNorm, copies=False)
    if getattr(
        module, "low_precision_ready", False
    ):  # norms.FusedRMSNorm: fp32 weight and statistics, low-precision input and output
        return lambda m: []
    if isinstance(module, ComputeConv1D):
        return lambda m: _become(m, kind)
    if kind.__name__ == "Conv1D" and hasattr(module, "nf"):
        return lambda m: _become(m, replace_forward(ComputeConv1D, kind))
    kept = kept_forward(module)
    return None if kept is None else lambda m: keep_forward(m, kept, _read)


def _read(parameter: Tensor) -> Tensor:
    """Return what a kept forward reads in place of a parameter: the copy, or the parameter if it has none."""
    return parameter if compute_copy(parameter) is parameter else LowPrecisionCast.apply(parameter)


def _become(module: nn.Module, kind: type[nn.Module], copies: bool = True) -> list[nn.Parameter]:
    module.__class__ = kind
    return list(module.parameters(recurse=False)) if copies else []


class ComputeLayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` on low-precision input with fp32 parameters and statistics."""

    def forward(self, input: Tensor) -> Tensor:
        """[.., H] -> [.., H] in the input's dtype; computed in fp32."""
        shape = list(self.normalized_shape)
        weight: Tensor | None = self.weight
        bias: Tensor | None = self.bias
        if weight is None or weight.dtype == input.dtype or kind_of(input.device.type).mixed_norms:
            return F.layer_norm(input, shape, weight, bias, self.eps)
        # Most kernels demand one dtype for input and weight.
        wide = torch.promote_types(weight.dtype, input.dtype)
        weight, bias = weight.to(wide), None if bias is None else bias.to(wide)
        if torch.compiler.is_compiling():
            return F.layer_norm(input.to(wide), shape, weight, bias, self.eps).to(input.dtype)
        return WidenedLayerNorm.apply(input, shape, weight, bias, self.eps)


class _Context(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # input, weight, mean, 1 / std, bias
    shape: list[int]


class WidenedLayerNorm(Function):
    """Layer norm in the dtype of its weights that keeps no activations in that dtype."""

    @staticmethod
    def forward(
        ctx: _Context, x: Tensor, shape: list[int], weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        """x [.., H] in low precision, weight and bias [H] in fp32 -> [.., H] in low precision."""
        # Saved in low precision, with fp32 mean and 1 / std [.., 1]: the backward widens the input again.
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
