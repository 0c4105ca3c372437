"""Attention of a device against attention document by document in float64: flash with sinks, heads of two
sizes, flex by its tables of blocks, padded calls; numbers and gradients, for random packings.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import emulated_flex
import emulated_kernels
import pytest
import torch
from device_steps import LLAMA, train
from emulated_device import emulated
from support import swept
from torch import Tensor

from paceline.models.attention.flash_varlen import documents_varlen
from paceline.models.attention.flex_attention import documents_flex
from paceline.models.attention.reference_attention import (
    AttentionOptions,
    documents_generic,
    documents_padded,
)
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.plan.model.kernels import DOCUMENT_SCORES, FLEX, SCORE_BYTES, VARLEN_FLASH

sys.path.append(str(Path(__file__).parents[1] / "models"))
from model_families import FAMILIES  # noqa: E402

LENGTHS = (1, 1, 2, 7, 64, 129, 150)


def _flex(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedSequenceInfo, options: AttentionOptions
) -> Tensor:
    scale, _, window, softcap, sinks = options
    seen = layout.visible(window)
    return documents_flex(
        emulated_flex.call, query, key, value, seen, scale=scale, softcap=softcap, sinks=sinks
    )


def _given(
    draw: random.Random, widths: tuple[int, int], dtype: torch.dtype
) -> tuple[tuple[int, ...], list[Tensor]]:
    """Boundaries; query, key, value, sinks: two query heads a key."""
    lengths = [draw.choice(LENGTHS) for _ in range(draw.randint(1, 5))]
    bounds = tuple(sum(lengths[:i]) for i in range(len(lengths) + 1))
    noise = torch.Generator().manual_seed(draw.randrange(1 << 30))
    shapes = (
        (1, 4, bounds[-1], widths[0]),
        (1, 2, bounds[-1], widths[0]),
        (1, 2, bounds[-1], widths[1]),
        (4,),
    )
    return bounds, [torch.randn(s, dtype=torch.float64, generator=noise).to(dtype) for s in shapes]


@pytest.mark.parametrize("seed", swept(range(4), 4))
@pytest.mark.parametrize(
    ("attend", "softcap", "widths", "sinks"),
    [
        (documents_varlen, None, (8, 8), True),
        (documents_varlen, None, (24, 16), False),
        (documents_varlen, None, (12, 20), True),
        (documents_padded, None, (8, 8), True),
        (documents_padded, None, (12, 12), True),
        (_flex, 1.5, (16, 16), False),
        (_flex, 1.5, (8, 24), True),
    ],
)
def test_a_devices_attention_has_the_numbers_and_gradients_of_float64(
    attend: Callable[..., Tensor], softcap: float | None, widths: tuple[int, int], sinks: bool, seed: int
) -> None:
    draw = random.Random(seed)
    bounds, given = _given(draw, widths, torch.float32)
    window = draw.choice((None, 1, 3, 70, 128))
    if not sinks:
        given = given[:3]

    def computed(attend: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
        layout = PackedSequenceInfo.over(bounds, inputs[0].device)
        own = inputs[3] if sinks else None
        options = AttentionOptions(0.4, window=window, softcap=softcap, sinks=own)
        out = attend(*inputs[:3], layout, options)
        weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.device, out.dtype)
        (out * weight).sum().backward()
        return [out.detach().cpu(), *(x.grad.cpu() for x in inputs)]

    expected = computed(documents_generic, [x.double().requires_grad_() for x in given])
    # flash in fp32, to be held to float64
    with emulated() as machine, mock.patch.object(emulated_kernels, "_accepts"):
        placed = [x.to(machine.device).requires_grad_() for x in given]
        machine.forget()
        found = computed(attend, placed)
        assert all("elsewhere" in place for place in machine.waits), machine.waits
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours.double(), theirs, rtol=1e-4, atol=2e-5)


CAPPED = {
    **LLAMA,
    "model_type": "gemma2",
    "head_dim": 16,
    "sliding_window": 4,
    "attn_logit_softcapping": 3.0,
}


def test_shared_prompts_of_pairs_are_whole_again_in_flex() -> None:
    options = {"training": {"algorithm": "dpo"}}
    cpu, device = (train(where, "bf16", FAMILIES["gemma2"], **options) for where in ("cpu", "cuda"))
    assert device.attention == {FLEX}
    assert device.losses == pytest.approx(cpu.losses, abs=2e-4)


def test_a_models_masks_are_made_once_a_micro_batch_and_window() -> None:
    """Four layers, two windows: as many searches as for two layers."""
    searches = []
    for layers in (2, 4):
        found = train("cuda", "bf16", {**CAPPED, "num_hidden_layers": layers}, accumulation=1, windows=1)
        searches.append(found.kernels["searchsorted"])
        assert found.kernels["flex"] == layers
    assert searches[0] == searches[1] > 0


@pytest.mark.parametrize("missing", ["Triton is not installed", "there is no C compiler"])
def test_without_a_compiler_the_scores_are_computed_and_that_is_said(missing: str) -> None:
    device = train("cuda", "bf16", CAPPED, no_triton=missing)
    assert device.attention == {DOCUMENT_SCORES}
    assert device.planned_attention.startswith(f"{DOCUMENT_SCORES}: ") and missing in device.planned_attention


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gpt_oss"])
@pytest.mark.parametrize(
    "capability",
    [
        (8, 0),
        pytest.param((9, 0), marks=pytest.mark.slow),
        pytest.param((10, 0), marks=pytest.mark.full),
    ],
)
def test_capped_scores_and_sinks_have_a_kernel_from_ampere_on(
    family: str, capability: tuple[int, int]
) -> None:
    every = (
        {"num_experts_per_tok": 2} if family == "gpt_oss" else {}
    )  # no token changes its expert by rounding
    model = {**FAMILIES[family], **every}
    cpu, device = (train(where, "bf16", model, capability=capability) for where in ("cpu", "cuda"))
    assert device.attention == {FLEX if family == "gemma2" else VARLEN_FLASH}
    assert device.losses == pytest.approx(cpu.losses, abs=2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scores_take_the_planned_bytes(dtype: torch.dtype) -> None:
    heads, tokens = 4, 512
    with emulated((7, 5)) as machine:
        shape = (1, heads, tokens, 8)
        qkv = [torch.ones(shape, dtype=dtype, device="cuda").requires_grad_() for _ in range(3)]
        layout = PackedSequenceInfo.over((0, tokens), machine.device)
        machine.forget()
        before = machine.live
        out = documents_generic(*qkv, layout, AttentionOptions(0.3, softcap=2.0))
        kept = machine.live - before
        out.sum().backward()
        whole = machine.peak - before
    assert kept / (heads * tokens**2) == pytest.approx(SCORE_BYTES, rel=0.08)
    assert whole / (heads * tokens**2) == pytest.approx(2 * SCORE_BYTES, rel=0.12)
