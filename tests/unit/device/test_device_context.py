"""Context parallelism by all-gather on a device: a rank's queries over the keys gathered so far, in one call
of the kernel. Numbers and gradients against whole documents in float64; a long document costs its causal
half.
"""

from __future__ import annotations

import random
from itertools import pairwise
from unittest import mock

import emulated_flex
import emulated_kernels
import pytest
import torch
from emulated_device import emulated
from roofline import WITHOUT_NUMBERS, Roofline, counting_kernels
from support import swept
from torch import Tensor

from paceline.models.attention import kernel_choice
from paceline.models.attention.packed_attention import document_attention
from paceline.models.attention.reference_attention import AttentionOptions, documents_generic
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.plan.model.kernels import DOCUMENT_SCORES, FLEX, PADDED_SDPA, VARLEN_FLASH

RANKS = 3


def _in_blocks(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedSequenceInfo, options: AttentionOptions
) -> Tensor:
    """What the ranks of a group compute, side by side."""
    size = query.shape[2] // RANKS
    parts = []
    for start, end in pairwise(range(0, query.shape[2] + 1, size)):
        own = layout.block(start, end)
        seen = slice(end - (own.keys or own).bounds[-1], end)
        given = query[:, :, start:end], key[:, :, seen], value[:, :, seen]
        parts.append(document_attention(*given, own, options))
    return torch.cat(parts, dim=2)


@pytest.mark.parametrize("seed", swept(range(4), 4))
@pytest.mark.parametrize(
    ("kernel", "softcap", "sinks"),
    [
        (VARLEN_FLASH, None, False),
        (VARLEN_FLASH, None, True),
        (FLEX, 1.5, False),
        (FLEX, 1.5, True),
        (PADDED_SDPA, None, False),
        (DOCUMENT_SCORES, 1.5, True),
    ],
)
def test_blocks_of_a_batch_give_the_gradients_of_the_whole(
    kernel: str, softcap: float | None, sinks: bool, seed: int
) -> None:
    draw = random.Random(seed)
    lengths = [draw.choice((1, 5, 60, 130, 200)) for _ in range(draw.randint(1, 4))]
    lengths.append(-sum(lengths) % RANKS + RANKS)
    bounds = tuple(sum(lengths[:i]) for i in range(len(lengths) + 1))
    window = draw.choice((None, 2, 40, 129))
    noise = torch.Generator().manual_seed(seed)
    shapes = ((1, 4, bounds[-1], 16), (1, 2, bounds[-1], 16), (1, 2, bounds[-1], 16), (4,))
    given = [torch.randn(s, generator=noise) for s in shapes][: 4 if sinks else 3]
    weight = torch.randn(shapes[0], generator=noise)

    def computed(attend: object, inputs: list[Tensor]) -> list[Tensor]:
        layout = PackedSequenceInfo.over(bounds, inputs[0].device)
        own = inputs[3] if sinks else None
        options = AttentionOptions(0.4, window=window, softcap=softcap, sinks=own)
        out = attend(*inputs[:3], layout, options)  # type: ignore[operator]
        (out * weight.to(out.device, out.dtype)).sum().backward()
        return [out.detach().cpu(), *(x.grad.cpu() for x in inputs)]

    expected = computed(documents_generic, [x.double().requires_grad_() for x in given])
    with (
        emulated() as machine,
        mock.patch.object(emulated_kernels, "_accepts"),  # flash in fp32
        mock.patch.object(kernel_choice, "attention_kernel", lambda *_: (kernel, "")),
    ):
        found = computed(_in_blocks, [x.to(machine.device).requires_grad_() for x in given])
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours.double(), theirs, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_a_long_document_costs_its_causal_half(softcap: float | None) -> None:
    """128 k tokens over eight ranks; before, masked calls over all keys of each 1,024 queries."""
    tokens, ranks, heads, width = 131072, 8, 2, 16
    size = tokens // ranks
    with emulated() as machine, mock.patch.dict(emulated_kernels.OWN, WITHOUT_NUMBERS):
        whole = PackedSequenceInfo.over((0, tokens), machine.device)
        key = torch.zeros(1, heads, tokens, width, dtype=torch.bfloat16, device="cuda")
        costs = []
        for rank in range(ranks):
            start, end = rank * size, rank * size + size
            own = whole.block(start, end)
            counted = own.visible(None).first if softcap else None
            if counted is not None:
                counted.numbers.block_count = _blocks(start, end)  # type: ignore[attr-defined]
            inputs = [x.requires_grad_() for x in (key[:, :, start:end].detach(), key[:, :, :end].detach())]
            with counting_kernels(Roofline()) as found:
                out = document_attention(
                    inputs[0], inputs[1], inputs[1], own, AttentionOptions(1.0, softcap=softcap)
                )
                costs.append(found.flops)
                out.sum().backward()
    half = 4 * heads * width * tokens**2 / 2
    assert sum(costs) == pytest.approx(half, rel=0.01)
    assert costs[0] < costs[-1] / 10  # the first rank has the least to see


def _blocks(start: int, end: int) -> int:
    """Blocks of scores from a document's beginning to the queries [start, end)."""
    side = emulated_flex.BLOCK
    return sum(row // side + 1 for row in range(start, end, side))
