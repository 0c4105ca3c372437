"""flex_attention's masks and calls against attention document by document, in float64 on a CPU: random
packings with windows, documents of one token, keys before the first query; one compiled graph for all of
them.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest
import torch
from support import swept
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as torch_flex

from paceline.models.attention.context_parallel_attention import tail_mask
from paceline.models.attention.flex_attention import BLOCK, VisibleKeys, compiled_flex, documents_flex
from paceline.models.attention.reference_attention import (
    AttentionOptions,
    document_mask,
    documents_generic,
    documents_padded,
    scores_attention,
)
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.protocols.images import Images

WINDOWS = (None, 1, 2, 40, 127, 128, 129, 300)


def _packing(draw: random.Random, longer_keys: bool, most: int = 9) -> PackedSequenceInfo:
    """Up to ``most`` documents and one more; with ``longer_keys`` the first has keys before its queries."""
    lengths = [draw.choice((1, 1, 2, 63, 127, 128, 129, 200, 257)) for _ in range(draw.randint(1, most))]
    lengths.append(2)  # one token alone is a graph of its own
    bounds = tuple(sum(lengths[:i]) for i in range(len(lengths) + 1))
    layout = PackedSequenceInfo.over(bounds, torch.device("cpu"))
    if not longer_keys:
        return layout
    more = draw.choice((1, 100, 128, 300))
    keys = PackedSequenceInfo.over((0, *(b + more for b in bounds[1:])), torch.device("cpu"))
    return PackedSequenceInfo(bounds, layout.cu_seqlens, layout.max_seqlen, keys=keys)


def _visible(layout: PackedSequenceInfo, window: int | None) -> Tensor:
    """bool [T, S], document by document."""
    keys = layout.keys or layout
    found = torch.zeros(layout.bounds[-1], keys.bounds[-1], dtype=torch.bool)
    for (a, b), (c, d) in zip(pairwise(layout.bounds), pairwise(keys.bounds), strict=True):
        found[a:b, c:d] = (
            tail_mask(b - a, d - c, window, torch.device("cpu"))
            if layout.causal
            else document_mask(b - a, window, False, torch.device("cpu"))
        )
        for start, end in layout.blocks_of(a, b):  # tokens of an image, whichever of them the window reaches
            near = torch.ones(end - start, end - start, dtype=torch.bool)
            found[a + start : a + end, a + start : a + end] |= near.triu(-(window or b) + 1)
    return found


def _with_images(layout: PackedSequenceInfo, draw: random.Random) -> PackedSequenceInfo:
    """The layout with runs of image tokens, some from one document into the next."""
    places = [place for place in range(layout.bounds[-1]) if draw.random() < 0.97]
    images = Images.of({}, torch.tensor(places), (len(places),))
    return replace(layout, blocks=images.blocks(layout.bounds))


def _dense(counts: Tensor, places: Tensor) -> Tensor:
    found = torch.zeros_like(places[0, 0], dtype=torch.bool)
    for row, count in enumerate(counts[0, 0].tolist()):
        where = places[0, 0, row, :count].long()
        assert len(set(where.tolist())) == count
        found[row, where] = True
    return found


@pytest.mark.parametrize("seed", swept(range(24), 5))
def test_what_a_query_sees_and_its_blocks_are_those_of_the_whole_mask(seed: int) -> None:
    draw = random.Random(seed)
    layout, window = _packing(draw, seed % 3 == 2), WINDOWS[seed % len(WINDOWS)]
    if layout.keys is None:
        layout = replace(layout, causal=seed % 2 == 0)
        layout = _with_images(layout, draw) if seed % 4 == 0 else layout
    seen, mask = layout.visible(window), _visible(layout, window)
    to = torch.arange(mask.shape[1])
    assert torch.equal((to >= seen.first[:, None]) & (to <= seen.last[:, None]), mask)
    rows, columns = (max(2, -(-n // BLOCK)) for n in mask.shape)
    padded = torch.zeros(rows * BLOCK, columns * BLOCK, dtype=torch.bool)
    padded[: mask.shape[0], : mask.shape[1]] = mask
    tiles = padded.unflatten(1, (columns, BLOCK)).unflatten(0, (rows, BLOCK)).transpose(1, 2)
    beyond = torch.ones_like(padded)  # rows past the last query see what is convenient
    beyond[: mask.shape[0]] = padded[: mask.shape[0]]
    whole = beyond.unflatten(1, (columns, BLOCK)).unflatten(0, (rows, BLOCK)).transpose(1, 2).all(3).all(2)
    some = tiles.any(3).any(2)
    whole &= some
    by_query, by_query_whole, by_key, by_key_whole = (
        _dense(*seen.blocks[i : i + 2]) for i in range(0, len(seen.blocks), 2)
    )
    assert torch.equal(by_query_whole, whole)
    assert torch.equal(by_query, some & ~whole)
    assert torch.equal(by_key, by_query.mT) and torch.equal(by_key_whole, by_query_whole.mT)


@pytest.mark.parametrize("seed", range(4))
def test_tokens_of_an_image_see_each_other_in_every_kernel(seed: int) -> None:
    draw = random.Random(seed)
    layout, window = _with_images(_packing(draw, False, 3), draw), (None, 40)[seed % 2]
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(1, heads, layout.bounds[-1], 16, dtype=torch.float64, generator=generator)
        for heads in (4, 2, 2)
    )
    mask = _visible(layout, window)[None, None]
    expected = scores_attention(q, k, v, mask, AttentionOptions(0.25))
    for how in (documents_generic, documents_padded):
        torch.testing.assert_close(how(q, k, v, layout, AttentionOptions(0.25, window=window)), expected)
    options = AttentionOptions(0.25, window=window, softcap=1e9)  # as explicit scores
    torch.testing.assert_close(documents_generic(q, k, v, layout, options), expected)


def test_what_is_seen_is_found_once_for_layers_that_share_a_window() -> None:
    layout = _packing(random.Random(1), False)
    with mock.patch.object(VisibleKeys, "of", side_effect=VisibleKeys.of) as found:
        made = [layout.visible(window) for window in (None, 40, None, 40, 40)]
    assert found.call_count == 2
    assert made[0] is made[2] and made[1] is made[3]


def _inputs(layout: PackedSequenceInfo, seed: int) -> list[Tensor]:
    """query, key, value (of another width), sinks: two query heads a key."""
    draw = torch.Generator().manual_seed(seed)
    tokens, keys = layout.bounds[-1], (layout.keys or layout).bounds[-1]
    shapes = ((1, 4, tokens, 16), (1, 2, keys, 16), (1, 2, keys, 24))
    made = [torch.randn(s, dtype=torch.float64, generator=draw) for s in shapes]
    return [x.requires_grad_() for x in (*made, torch.randn(4, dtype=torch.float64, generator=draw))]


def _gradients(out: Tensor, inputs: list[Tensor], seed: int) -> list[Tensor]:
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(seed))
    return list(torch.autograd.grad((out * weight).sum(), inputs))


@pytest.mark.parametrize(("softcap", "sinks", "packings"), [(2.0, False, 10), (5.0, True, 4)])
def test_one_graph_gives_every_packing_the_numbers_of_a_call_a_document(
    softcap: float, sinks: bool, packings: int
) -> None:
    """torch's own kernel refuses gradients on a CPU; its mathematics, in the graph, does not."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    flex = compiled_flex(counter)
    with mock.patch.object(torch_flex, "_validate_device", lambda *_: None):
        for seed in range(packings):
            draw = random.Random(seed)
            layout, window = _packing(draw, seed % 4 == 3, most=4), draw.choice(WINDOWS)
            inputs = _inputs(layout, seed)
            *qkv, given = inputs
            own = given if sinks else None
            inputs = inputs if sinks else qkv
            out = documents_flex(flex, *qkv, layout.visible(window), scale=0.3, softcap=softcap, sinks=own)
            if layout.keys is None:
                options = AttentionOptions(0.3, window=window, softcap=softcap, sinks=own)
                expected = documents_generic(*qkv, layout, options)
            else:
                mask = _visible(layout, window)
                expected = scores_attention(*qkv, mask, AttentionOptions(0.3, softcap=softcap, sinks=own))
            assert torch.allclose(out, expected, rtol=1e-6 if sinks else 1e-10, atol=1e-6 if sinks else 1e-10)
            found, wanted = (_gradients(x, inputs, seed) for x in (out, expected))
            for ours, theirs in zip(found, wanted, strict=True):
                assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6 if sinks else 1e-10)
    assert counter.frame_count == 1
    torch.compiler.reset()
