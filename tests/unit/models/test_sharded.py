"""What tensor and context parallelism decide before any rank meets another: plans, cuts of a batch, heads,
the tail of a document.
"""

from __future__ import annotations

import pytest
import torch
from model_families import FAMILIES, Source, make_batch

from paceline.core.errors import ConfigError
from paceline.models.attention.context_parallel import padded, shared_heads
from paceline.models.attention.context_parallel_attention import CpuTail, attend_tail
from paceline.models.attention.reference_attention import AttentionOptions, scores_attention
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.loading.model_source import load_hf_config
from paceline.models.parallel.tensor_parallel_cut import tensor_parallel_plan
from paceline.protocols.batch import IGNORE_INDEX


def test_the_plan_is_the_models_own() -> None:
    plan = tensor_parallel_plan(load_hf_config(Source(config=FAMILIES["qwen3"])))
    assert plan["layers.*.self_attn.q_proj"] == "colwise"
    assert plan["layers.*.self_attn.o_proj"] == "rowwise"
    assert plan["layers.*.self_attn.k_norm"] == "replicated_with_grad_allreduce"


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (FAMILIES["gpt2"], "models.tp_no_plan"),
        ({**FAMILIES["llama"], "model_type": "granite_swa"}, "models.tp_style"),
    ],
)
def test_a_model_without_a_usable_plan_is_refused_by_name(config: dict[str, object], code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tensor_parallel_plan(load_hf_config(Source(config=dict(config))))
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == code
    assert str(config["model_type"]) in str(diagnostic.found)
    assert diagnostic.hint


def test_padding_is_a_document_that_weighs_nothing() -> None:
    batch = make_batch((5, 12, 3, 9))
    whole = padded(batch, 8)
    assert whole.input_ids.shape == whole.labels.shape == whole.position_ids.shape == (1, 32)
    assert whole.cu_seqlens.tolist() == [0, 5, 17, 20, 29, 32]
    assert whole.position_ids[0, -3:].tolist() == [0, 1, 2]
    assert (whole.labels[0, -3:] == IGNORE_INDEX).all()
    assert (whole.num_tokens, whole.num_rows, int(whole.num_labels())) == (
        29,
        batch.num_rows,
        int(batch.num_labels()),
    )
    assert padded(batch, 29) is batch


@pytest.mark.parametrize(
    ("start", "end", "queries", "keys"),
    [
        (0, 6, (0, 5, 6), None),  # begins with a document, ends inside the next
        (6, 12, (0, 6), (0, 7)),  # inside one that goes on: the tail is all there is
        (12, 18, (0, 5, 6), (0, 12, 13)),  # its end, and a whole one
        (18, 24, (0, 6), None),
    ],
)
def test_documents_as_a_block_sees_them(
    start: int, end: int, queries: tuple[int, ...], keys: tuple[int, ...] | None
) -> None:
    whole = PackedSequenceInfo.over((0, 5, 17, 18, 24), torch.device("cpu"))
    block = whole.block(start, end)
    assert block.bounds == queries and (block.keys and block.keys.bounds) == keys
    assert whole.block(start, end) is block


@pytest.mark.parametrize(
    ("heads", "shared", "ranks", "held"), [(8, 4, 2, 4), (8, 2, 4, 4), (4, 1, 2, 2), (12, 3, 2, 12)]
)
def test_key_heads_are_repeated_as_little_as_can_be(heads: int, shared: int, ranks: int, held: int) -> None:
    """Every rank's query heads find their key head at the place that attention's own grouping looks."""
    key = torch.arange(shared).reshape(1, shared, 1, 1)
    repeated = shared_heads(key, heads, ranks)
    assert repeated.shape[1] == held
    per_query = repeated.repeat_interleave(heads // held, dim=1).flatten().tolist()
    assert per_query == [h * shared // heads for h in range(heads)]


@pytest.mark.parametrize("options", [{}, {"window": 5}, {"softcap": 3.0}, {"window": 5, "softcap": 3.0}])
def test_the_tail_of_a_document_over_all_of_it(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joined by log-sums, or masked a few rows at a time, against explicit scores."""
    monkeypatch.setattr("paceline.models.attention.context_parallel_attention.ROWS", 3)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 7, 8, generator=generator, dtype=torch.float64).requires_grad_()
    k, v = (
        torch.randn(1, 2, 19, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)
    )
    out = attend_tail(q, k, v, AttentionOptions(0.4, **options))
    at, to = torch.arange(12, 19)[:, None], torch.arange(19)[None]
    mask = (to <= at) & (to > at - options.get("window", 100))
    expected = scores_attention(q, k, v, mask, AttentionOptions(0.4, softcap=options.get("softcap")))
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    for a, b in zip(
        *(torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (out, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    low = CpuTail.apply(q.bfloat16(), k.bfloat16(), v.bfloat16(), 0.4, torch.bfloat16)
    if not options:
        assert (low.double() - expected).abs().max() < 0.05
