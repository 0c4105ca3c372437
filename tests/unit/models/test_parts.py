"""The fused parts against what they replace, in float64, and the compiled trunk."""

from __future__ import annotations

import platform

import pytest
import torch
from model_families import build_family, make_batch
from torch import nn

from paceline.models.heap import keep_heap
from paceline.models.norms import RmsNorm
from paceline.models.qkv import rotate
from paceline.models.swiglu import SwiGlu
from paceline.seam.roles import Ask

NLL = frozenset({Ask.NLL})


def _draw(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)), dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset: float) -> None:
    x, weight = _draw(3, 4, 6), _draw(6)
    assert torch.autograd.gradcheck(lambda a, w: RmsNorm.apply(a, w, 1e-5, offset), (x, weight))
    expected = nn.functional.rms_norm(x, (6,), weight + offset, 1e-5)
    torch.testing.assert_close(RmsNorm.apply(x, weight, 1e-5, offset), expected)


def test_swiglu_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.models.swiglu._BLOCK_ELEMENTS", 2 * 7)  # two rows a block, the last one short
    x, gate, up, down = _draw(1, 5, 4), _draw(7, 4), _draw(7, 4), _draw(4, 7)
    assert torch.autograd.gradcheck(lambda *a: SwiGlu.apply(*a, torch.float64), (x, gate, up, down))
    expected = (nn.functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
    torch.testing.assert_close(SwiGlu.apply(x, gate, up, down, torch.float64), expected)


def test_turning_there_and_back() -> None:
    x = _draw(1, 3, 2, 8)
    angles = torch.rand(1, 3, 4, dtype=torch.float64).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    halves = torch.cat([-x[..., 4:], x[..., :4]], dim=-1)
    torch.testing.assert_close(rotate(x.detach(), cos, sin), (x * cos[:, :, None] + halves * sin[:, :, None]).detach())
    torch.testing.assert_close(rotate(rotate(x.detach(), cos, sin), cos, sin, -1.0), x.detach())


def test_frozen_parts_get_no_gradient() -> None:
    module = build_family("qwen2")
    for name, parameter in module.plain_named_parameters():
        parameter.requires_grad_("v_proj" in name)
    module(make_batch(), NLL)["nll"].backward()
    for name, parameter in module.plain_named_parameters():
        assert (parameter.grad is not None) == ("v_proj" in name), name


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # from dynamo itself
def test_compiled_trunk_changes_nothing() -> None:
    plain, traced = build_family("llama"), build_family("llama", compile=True, compile_options={"backend": "eager"})
    for seed, lengths in enumerate([(5, 9, 3), (4, 8), (11,)]):
        batch = make_batch(lengths, seed=seed)
        losses = plain(batch, NLL)["nll"], traced(batch, NLL)["nll"]
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)
        for loss in losses:
            loss.backward()
    for (name, a), (same, b) in zip(plain.plain_named_parameters(), traced.plain_named_parameters(), strict=True):
        assert name == same
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4, msg=name)


def test_heap_is_kept_with_glibc_only() -> None:
    assert keep_heap() is (platform.libc_ver()[0] == "glibc")
