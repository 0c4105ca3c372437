"""The fused parts against what they replace, in float64, and the compiled trunk."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch
from model_families import build_family, make_batch
from torch import nn

from paceline.models.attention import reference_attention
from paceline.models.attention.reference_attention import CpuDocuments, DocumentOptions
from paceline.models.fused_layers.qkv_rotary import rotate
from paceline.models.fused_layers.rms_norm import RmsNorm
from paceline.models.fused_layers.swiglu import SwiGlu
from paceline.protocols.roles import Output
from paceline.runtime.device.host import configure_malloc, return_freed_memory

NLL = frozenset({Output.NLL})


def _draw(*size: int) -> torch.Tensor:
    return torch.randn(
        *size, generator=torch.Generator().manual_seed(sum(size)), dtype=torch.float64
    ).requires_grad_()


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset: float) -> None:
    x, weight = _draw(3, 4, 6), _draw(6)
    assert torch.autograd.gradcheck(lambda a, w: RmsNorm.apply(a, w, 1e-5, offset), (x, weight))
    expected = nn.functional.rms_norm(x, (6,), weight + offset, 1e-5)
    torch.testing.assert_close(RmsNorm.apply(x, weight, 1e-5, offset), expected)


@pytest.mark.parametrize(("least", "from_output"), [(0.5, True), (0.0, False)])
def test_rms_norm_keeps_its_output_unless_a_gain_is_too_near_zero(least: float, *, from_output: bool) -> None:
    x, weight = (
        _draw(3, 4, 6),
        torch.tensor([0.5, 2.0, -1.0, 3.0, 1.0, least], dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(lambda a, w: RmsNorm.apply(a, w, 1e-5, 0.0), (x, weight))
    y = RmsNorm.apply(x, weight, 1e-5, 0.0)
    kept = [t.data_ptr() for t in y.grad_fn.saved_tensors]
    assert (y.data_ptr() in kept, x.data_ptr() in kept) == (from_output, not from_output)


def test_swiglu_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # two rows a block, the last one short
    monkeypatch.setattr("paceline.models.fused_layers.swiglu.BLOCK_ELEMENTS", 2 * 7)
    x, gate, up, down = _draw(1, 5, 4), _draw(7, 4), _draw(7, 4), _draw(4, 7)
    assert torch.autograd.gradcheck(lambda *a: SwiGlu.apply(*a, torch.float64), (x, gate, up, down))
    expected = (nn.functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
    torch.testing.assert_close(SwiGlu.apply(x, gate, up, down, torch.float64), expected)


def test_documents_of_one_length_are_attended_to_at_once_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v = (
        _draw(1, 15, 4, 8).transpose(1, 2),
        _draw(1, 15, 2, 8).transpose(1, 2),
        _draw(1, 15, 2, 8).transpose(1, 2),
    )
    upstream = torch.randn(
        1, 15, 4, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).transpose(1, 2)

    def both_ways(bounds: tuple[int, ...]) -> list[torch.Tensor]:
        out = CpuDocuments.apply(q, k, v, DocumentOptions(bounds, 0.3, torch.float64))
        return [out, *torch.autograd.grad(out, (q, k, v), upstream)]

    calls: list[int] = []
    flash = reference_attention._flash
    monkeypatch.setattr(
        reference_attention, "_flash", lambda *a, **kw: (calls.append(a[0].shape[0]), flash(*a, **kw))[1]
    )
    together = both_ways((0, 5, 10, 15))
    assert calls == [3]
    calls.clear()
    monkeypatch.setattr(reference_attention, "equal_rows", lambda *_: 0)
    for a, b in zip(together, both_ways((0, 5, 10, 15)), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    assert calls == [1, 1, 1]


@pytest.mark.parametrize(
    ("bounds", "tokens", "rows"),
    [((0, 5, 10), 10, 2), ((0, 5, 9), 9, 0), ((0, 5, 10), 12, 0), ((0, 9), 9, 0)],
)
def test_documents_of_one_length_are_known_by_their_bounds(
    bounds: tuple[int, ...], tokens: int, rows: int
) -> None:
    assert reference_attention.equal_rows(bounds, tokens) == rows


def test_turning_there_and_back() -> None:
    x = _draw(1, 3, 2, 8)
    angles = torch.rand(1, 3, 4, dtype=torch.float64).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    halves = torch.cat([-x[..., 4:], x[..., :4]], dim=-1)
    torch.testing.assert_close(
        rotate(x.detach(), cos, sin), (x * cos[:, :, None] + halves * sin[:, :, None]).detach()
    )
    torch.testing.assert_close(rotate(rotate(x.detach(), cos, sin), cos, sin, -1.0), x.detach())


def test_frozen_parts_get_no_gradient() -> None:
    module = build_family("qwen2")
    for name, parameter in module.plain_named_parameters():
        parameter.requires_grad_("v_proj" in name)
    module(make_batch(), NLL)["nll"].backward()
    for name, parameter in module.plain_named_parameters():
        assert (parameter.grad is not None) == ("v_proj" in name), name


def test_heap_is_kept_with_glibc_only() -> None:
    assert return_freed_memory() is configure_malloc() is (platform.libc_ver()[0] == "glibc")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's own options")
@pytest.mark.parametrize("first", ["return_freed_memory", "configure_malloc"])
def test_freed_blocks_go_back_while_models_are_built_and_stay_in_training(first: str) -> None:
    """Blocks of 20 MiB, freed below one that stays: glibc by itself would keep them from the second on."""
    script = f"""
from paceline.runtime.device.host import {first}
{first}()
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))
size, before = 20 * 2**20, resident()
bytearray(size)
blocks = [bytearray(size) for _ in range(8)]
del blocks[:-1]
print(resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    kept = int(done.stdout) > 100 * 1024
    assert kept == (first == "configure_malloc"), done.stdout
