"""Packed documents do not see each other: log-probabilities and gradients equal those of each document
alone through Hugging Face.
"""

from __future__ import annotations

import pytest
import torch
from model_families import FAMILIES, build_family, make_batch, reference_logprobs, reference_model

from paceline.core.errors import ConfigError
from paceline.protocols.roles import Output

LOGPROBS = frozenset({Output.LOGPROBS})
NLL = frozenset({Output.NLL})
PADDED = {"bloom"}


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_each_document_alone(family: str) -> None:
    module, batch = build_family(family), make_batch(labels="some")
    assert module.attention.layout == ("padded" if family in PADDED else "packed")
    expected = reference_logprobs(module.hf, batch)
    torch.testing.assert_close(module(batch, LOGPROBS)["logprobs"], expected, rtol=1e-5, atol=1e-5)
    module(batch, NLL)["nll"].backward()
    (-expected.sum()).backward()
    other = dict(module.hf.reference[0].named_parameters())
    for name, parameter in module.plain_named_parameters():
        grad = other[name].grad
        assert parameter.grad is not None, name
        assert grad is None or torch.allclose(parameter.grad, grad, rtol=1e-3, atol=2e-4), name


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_a_neighbour_does_not_matter(family: str) -> None:
    module = build_family(family)
    one, other = make_batch((6, 7), seed=1), make_batch((6, 7), seed=2)
    mixed = torch.cat([one.input_ids[:, :6], other.input_ids[:, 6:]], dim=1)
    changed = type(one)(mixed, one.labels, one.position_ids, one.cu_seqlens, 7, one.document_ids, 2)
    a, b = module(one, LOGPROBS)["logprobs"], module(changed, LOGPROBS)["logprobs"]
    torch.testing.assert_close(a[:5], b[:5], rtol=0, atol=1e-6)
    assert not torch.allclose(a[5:], b[5:], atol=1e-3)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_transformers_functions_by_name(attention: str) -> None:
    module, batch = build_family("llama", attention=attention), make_batch()
    assert module.attention.layout == "padded"
    assert module.hf.config._attn_implementation == attention
    torch.testing.assert_close(
        module(batch, LOGPROBS)["logprobs"], reference_logprobs(module.hf, batch), rtol=1e-5, atol=1e-5
    )


def test_asking_for_packing_where_it_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="models.attention_not_packable"):
        build_family("bloom", attention="paceline")


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2"])
def test_generation_works_with_left_padding(family: str) -> None:
    module = build_family(family).eval()
    ids = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 11, 12]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    said = module.hf.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, use_cache=True)
    clean = reference_model(module.hf)
    alone = clean.generate(
        ids[:1, 2:], attention_mask=mask[:1, 2:], max_new_tokens=6, do_sample=False, use_cache=True
    )
    assert said[0, 2:].tolist() == alone[0].tolist()


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_recomputation_changes_nothing(family: str) -> None:
    plain, again = build_family(family), build_family(family, recompute=True)
    batches = make_batch(seed=3), make_batch((4, 8), seed=4)
    for module in (plain, again):
        # both forwards before the first backward: layouts must not mix
        losses = [module(batch, NLL)["nll"] for batch in batches]
        sum(losses).backward()
    for (name, a), (_, b) in zip(plain.plain_named_parameters(), again.plain_named_parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6, msg=name)
