"""Layer norm of 16-bit values with fp32 weights, as CPUs compute it and as cards have to."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models import compute_dtype
from paceline.models.compute_dtype import ComputeLayerNorm
from paceline.plan.hardware.device_kinds import CPU, CUDA


def _made(bias: bool, affine: bool) -> ComputeLayerNorm:
    generator = torch.Generator().manual_seed(3)
    made = ComputeLayerNorm(24, bias=bias, elementwise_affine=affine)
    for parameter in made.parameters():
        parameter.data = torch.randn(24, generator=generator) / 4 + 1
    return made


def _gradients(norm: ComputeLayerNorm, x: Tensor, kind: Any) -> tuple[Tensor, list[Tensor | None]]:
    for tensor in (x, *norm.parameters()):
        tensor.grad = None
    with mock.patch.object(compute_dtype, "kind_of", lambda _: kind):
        out = norm(x)
    (out.float() * torch.linspace(-1, 2, 24)).sum().backward()
    return out, [x.grad, *(p.grad for p in norm.parameters())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bias", "affine"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("kind", [CPU, CUDA], ids=lambda kind: kind.name)
def test_it_is_the_formula_in_float64_rounded_once(
    kind: Any, bias: bool, affine: bool, dtype: torch.dtype
) -> None:
    norm = _made(bias, affine)
    x = (torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(5)) * 3 + 1).to(dtype).requires_grad_()
    out, found = _gradients(norm, x, kind)
    exact = x.detach().double().requires_grad_()
    parameters = [p.detach().double().requires_grad_() for p in norm.parameters()]
    wide = (exact - exact.mean(-1, keepdim=True)) / (
        exact.var(-1, keepdim=True, unbiased=False) + 1e-5
    ).sqrt()
    wide = wide * parameters[0] if parameters else wide
    wide = wide + parameters[1] if bias else wide
    (wide * torch.linspace(-1, 2, 24, dtype=torch.float64)).sum().backward()
    assert out.dtype is dtype and x.grad is not None and x.grad.dtype is dtype
    assert torch.allclose(out.double(), wide, rtol=torch.finfo(dtype).eps, atol=1e-5)
    for grad, own in zip(found, [exact, *parameters], strict=True):
        assert grad is not None and own.grad is not None
        assert torch.allclose(grad.double(), own.grad, rtol=2 * torch.finfo(dtype).eps, atol=2e-2)
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in norm.parameters())


def test_what_is_kept_for_the_backward_has_the_size_of_the_input_in_16_bits() -> None:
    norm, x = _made(True, True), torch.randn(5, 24, dtype=torch.bfloat16, requires_grad=True)
    kept: list[Tensor] = []
    with (
        mock.patch.object(compute_dtype, "kind_of", lambda _: CUDA),
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t),
    ):
        norm(x)
    assert sum(t.numel() * t.element_size() for t in kept if t.numel() > 24) == x.numel() * 2


def test_weights_in_the_dtype_of_the_input_are_torch_s_own_layer_norm() -> None:
    norm = _made(True, True).to(torch.bfloat16)
    x = torch.randn(3, 24, dtype=torch.bfloat16)
    with mock.patch.object(compute_dtype, "kind_of", lambda _: CUDA):
        assert torch.equal(norm(x), F.layer_norm(x, (24,), norm.weight, norm.bias, norm.eps))
