"""What a window asks of a GPU, without one: it must not grow. ``roofline.py`` prints the same numbers."""

from __future__ import annotations

from unittest import mock

import emulated_flex
import pytest
import roofline_sharded
import torch
from emulated_device import emulated
from roofline import (
    FLASH,
    MEMORY,
    PRODUCTS,
    WINDOWS,
    Roofline,
    counting_kernels,
    whole,
)
from roofline_flex import blocks_of, visible_and_counted
from torch.nn.attention.varlen import varlen_attn

from paceline.models.attention.flex_attention import VisibleKeys, documents_flex
from paceline.models.attention.sequence_info import PackedSequenceInfo

#: milliseconds of an H100 by the roofline, and kernels, as of November 2026: a smaller number is written here
BUDGETS = {"llama-3-8b": (1404, 1939), "qwen2.5-0.5b": (106, 1784), "gemma-2-2b": (631, 1896)}

#: the same of one rank of FSDP over 8, and its links' beside them
SHARDED = {"llama-3-8b": (1366, 151), "qwen2.5-0.5b": (101, 9), "gemma-2-2b": (622, 48)}


def test_a_product_is_one_kernel_of_its_flops_and_bytes() -> None:
    with emulated(), counting_kernels(Roofline()) as found:
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
        with counting_kernels(Roofline()) as found:
            out = varlen_attn(q, q, q, bounds, bounds, 5, 5, window_size=(-1, 0))
            forward = 4 * 2 * 8 * (10 * 10 / 2 / 2)
            assert found.flops == forward
            out.float().sum().backward()
        assert found.flops == forward * 3.5
        assert found.seconds["_varlen_attn"] >= forward / FLASH


def _blocks_one_by_one(bounds: list[int], window: int | None) -> int:
    """Of 128 x 128 scores, those in which any is seen: by the whole mask."""
    at = torch.arange(bounds[-1])
    document = torch.bucketize(at, torch.tensor(bounds[1:]), right=True)
    behind = at[:, None] - at[None, :]
    mask = (document[:, None] == document[None, :]) & (behind >= 0)
    mask &= behind < (window or bounds[-1])
    blocks = -(-bounds[-1] // 128)
    whole = torch.zeros(blocks * 128, blocks * 128, dtype=torch.bool)
    whole[: bounds[-1], : bounds[-1]] = mask
    return int(whole.unflatten(0, (blocks, 128)).unflatten(2, (blocks, 128)).any(3).any(1).sum())


@pytest.mark.parametrize(
    ("bounds", "window"), [([0, 300, 301, 900], None), ([0, 1000], 130), ([0, 7, 640], 1)]
)
def test_flex_is_the_blocks_that_are_not_empty(bounds: list[int], window: int | None) -> None:
    blocks = blocks_of(bounds, window)
    assert blocks == _blocks_one_by_one(bounds, window)
    with emulated() as machine, mock.patch.object(VisibleKeys, "of", visible_and_counted(bounds)):
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32).to(machine.device)
        layout = PackedSequenceInfo(tuple(bounds), cu_seqlens, bounds[-1])
        shapes = ((1, 4, bounds[-1], 32), (1, 2, bounds[-1], 32), (1, 2, bounds[-1], 16))
        inputs = [torch.ones(s, dtype=torch.bfloat16, device="cuda").requires_grad_() for s in shapes]
        seen = layout.visible(window)
        with counting_kernels(Roofline()) as found:
            out = documents_flex(emulated_flex.call, *inputs, seen, scale=1.0, softcap=2.0)
            forward = 2 * 4 * blocks * 128 * 128 * (32 + 16)
            assert found.flops == forward and found.kernels == 1
            out.sum().backward()
    assert found.flops == forward + 2 * 4 * blocks * 128 * 128 * (4 * 32 + 3 * 16)
    assert found.seconds["flex"] >= forward / FLASH
    tables = sum(x.numel() for x in (seen.first, seen.last, *seen.blocks)) * 4
    moved = sum(x.numel() for x in (*inputs, out)) * 2 + 4 * bounds[-1] * 4 + tables
    assert found.bytes > moved * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WINDOWS))
def test_a_window_costs_no_more_than_it_did(name: str) -> None:
    found, mfu = whole(name)
    milliseconds, kernels = BUDGETS[name]
    assert found.roofline.step * 1e3 <= milliseconds * 1.005, found.roofline.seconds.most_common(5)
    assert found.roofline.kernels <= kernels * 1.005
    assert 0.05 < mfu < 0.72


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WINDOWS))
def test_a_rank_of_fsdp_costs_no_more_than_it_did(name: str) -> None:
    rank = roofline_sharded.whole(name)
    kernels, links = SHARDED[name]
    assert rank.roofline.step * 1e3 <= kernels * 1.005 + 0.5, rank.roofline.seconds.most_common(5)
    assert 0 < rank.links * 1e3 <= links * 1.005 + 0.5
