"""What a window asks of a GPU, without one: it must not grow. ``roofline.py`` prints the same numbers."""

from __future__ import annotations

import pytest
import torch
from emulated_device import emulated
from roofline import FLASH, MEMORY, PRODUCTS, WINDOWS, Roofline, _counting, whole
from torch.nn.attention.varlen import varlen_attn

#: milliseconds of an H100 by the roofline, and kernels, as of November 2026: a smaller number is written here
BUDGETS = {"llama-3-8b": (1652, 4042), "qwen2.5-0.5b": (186, 3449), "gemma-2-2b": (1765, 6845)}


def test_a_product_is_one_kernel_of_its_flops_and_bytes() -> None:
    with emulated(), _counting(Roofline()) as found:
        a, b = torch.ones(8, 16, device="cuda"), torch.ones(16, 4, device="cuda")
        made = [0.0]

        def taken() -> tuple[float, float, float]:
            before, made[0] = made[0], found.bytes
            return found.kernels, found.bytes - before, found.flops

        kernels, _, _ = taken()
        c = a @ b
        assert taken() == (kernels + 1, 4 * (8 * 16 + 16 * 4 + 8 * 4), 2 * 8 * 16 * 4)
        c.t()[1:]
        assert taken()[:2] == (kernels + 1, 0)  # views
        c += 1
        assert taken()[:2] == (kernels + 2, 2 * 4 * 8 * 4)  # read and written
        assert found.seconds["mm"] == pytest.approx(max(4 * 224 / MEMORY, 1024 / PRODUCTS))


def test_flash_is_causal_attention_a_document() -> None:
    with emulated():
        q = torch.ones(10, 2, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        bounds = torch.tensor([0, 5, 10], dtype=torch.int32, device="cuda")
        with _counting(Roofline()) as found:
            out = varlen_attn(q, q, q, bounds, bounds, 5, 5, window_size=(-1, 0))
            forward = 4 * 2 * 8 * (10 * 10 / 2 / 2)
            assert found.flops == forward
            out.float().sum().backward()
        assert found.flops == forward * 3.5
        assert found.seconds["_varlen_attn"] >= forward / FLASH


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WINDOWS))
def test_a_window_costs_no_more_than_it_did(name: str) -> None:
    found, mfu = whole(name)
    milliseconds, kernels = BUDGETS[name]
    assert found.roofline.step * 1e3 <= milliseconds * 1.005, found.roofline.seconds.most_common(5)
    assert found.roofline.kernels <= kernels * 1.005
    assert 0.05 < mfu < 0.72
