"""The model of a reward: Hugging Face's sequence classification, its trunk as in every role, one number at
each document's last token.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_families import FAMILIES, VOCAB, Source, build_family, make_batch, reference_model

from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.plan.plan import AdapterSpec
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output, Role

SCORES = frozenset({Output.SCORES})
SPEC = AdapterSpec(r=4, alpha=8, target_modules=("all-linear",))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt2", "mistral"])
def test_scores_are_those_of_the_hugging_face_class(family: str) -> None:
    module = build_family(family, role=Role.REWARD, master_dtype=torch.float64)
    batch = make_batch()
    found = module(batch, SCORES)["scores"]
    clean = reference_model(module.hf)
    bounds = batch.cu_seqlens.tolist()
    expected = torch.stack(
        [
            clean(input_ids=batch.input_ids[:, a:b]).logits[0, 0]
            for a, b in zip(bounds, bounds[1:], strict=False)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    found.sum().backward()
    assert [n for n, p in module.plain_named_parameters() if p.grad is None] == []
    expected.sum().backward()
    for name, parameter in clean.named_parameters():
        torch.testing.assert_close(module.hf.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-5)
    assert module.hf.config.to_dict()["architectures"][0].endswith("ForSequenceClassification")


def test_values_are_read_at_every_labelled_position() -> None:
    module = build_family("llama", role=Role.VALUE, master_dtype=torch.float64)
    batch = make_batch()
    found = module(batch, frozenset({Output.VALUES, Output.SCORES}))
    alone = [module(batch, frozenset({ask}))[ask.value] for ask in (Output.SCORES, Output.VALUES)]
    assert torch.equal(found["scores"], alone[0]) and torch.equal(found["values"], alone[1])
    clean, bounds = reference_model(module.hf), batch.cu_seqlens.tolist()
    expected = []
    for a, b in zip(bounds, bounds[1:], strict=False):
        hidden = clean.model(input_ids=batch.input_ids[:, a:b]).last_hidden_state[0]
        expected.append(clean.score(hidden)[batch.labels[0, a:b] != -100, 0])
    torch.testing.assert_close(found["values"], torch.cat(expected), rtol=1e-5, atol=1e-5)
    none = module(replace(batch, labels=torch.full_like(batch.labels, -100)), frozenset({Output.VALUES}))[
        "values"
    ]
    assert none.shape == (0,) and none.dtype == torch.float64
    none.sum().backward()
    assert [n for n, p in module.plain_named_parameters() if p.grad is None] == []


def test_it_starts_from_a_language_model_with_a_seeded_head(tmp_path) -> None:  # type: ignore[no-untyped-def]
    policy = HFModelFactory(Source(config=FAMILIES["llama"]))()
    policy.hf.save_pretrained(tmp_path / "sft")
    source = Source(name_or_path=str(tmp_path / "sft"))
    one, two = (HFModelFactory(source, Role.REWARD, seed=3)() for _ in range(2))
    other = HFModelFactory(source, Role.REWARD, seed=4)()
    assert torch.equal(one.hf.model.embed_tokens.weight, policy.hf.model.embed_tokens.weight)
    assert torch.equal(one.hf.score.weight, two.hf.score.weight) and one.hf.score.weight.shape == (1, 32)
    assert not torch.equal(one.hf.score.weight, other.hf.score.weight)
    with pytest.raises(ConfigError, match=r"models.missing_weights[\s\S]*score.weight"):
        HFModelFactory(source, Role.REWARD, frozen=True)()  # a head that nobody trained would judge at random


def test_low_precision_meta_and_adapters() -> None:
    full = HFModelFactory(Source(config=FAMILIES["llama"]), Role.REWARD)()
    low = HFModelFactory(Source(config=FAMILIES["llama"]), Role.REWARD, compute_dtype=torch.bfloat16)()
    batch = make_batch()
    scores = low(batch, SCORES)["scores"]
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, full(batch, SCORES)["scores"], atol=0.02, rtol=0.1)
    meta = HFModelFactory(Source(config=FAMILIES["llama"]), Role.REWARD)(
        BuildOptions(device=torch.device("meta"))
    )
    assert meta.hf.score.weight.is_meta and meta.hf.score.weight.shape == (1, 32)
    pytest.importorskip("peft")
    tuned = HFModelFactory(Source(config=FAMILIES["llama"]), Role.REWARD, adapter=SPEC)()
    names = [name for name, _ in tuned.plain_named_parameters()]
    assert "score.weight" in names and sum(".lora_" in n for n in names) == len(names) - 1 == 2 * 7 * 2
    assert tuned.adapter is not None and tuned.adapter.peft["task_type"] == "SEQ_CLS"
    assert tuned.adapter.peft["modules_to_save"] == ["score"]
    torch.testing.assert_close(tuned(batch, SCORES)["scores"], full(batch, SCORES)["scores"])


def test_a_family_without_such_a_class_is_named() -> None:
    config = {**FAMILIES["cohere"], "vocab_size": VOCAB}
    with pytest.raises(ConfigError, match="models.no_scalar_head"):
        HFModelFactory(Source(config=config), Role.REWARD)()


def test_an_adapter_switched_off_is_the_base_and_changes_nothing_that_is_trained() -> None:
    pytest.importorskip("peft")
    source = Source(config=FAMILIES["llama"])
    base, tuned = HFModelFactory(source)(), HFModelFactory(source, adapter=SPEC)()
    with torch.no_grad():
        for name, parameter in tuned.plain_named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    batch, ask = make_batch(), frozenset({Output.LOGPROBS})
    wanted = base(batch, ask)["logprobs"]
    trained = [p.requires_grad for p in tuned.parameters()]
    assert not torch.allclose(tuned(batch, ask)["logprobs"], wanted, atol=1e-2)
    with tuned.without_adapter():
        torch.testing.assert_close(tuned(batch, ask)["logprobs"], wanted)
        assert [p.requires_grad for p in tuned.parameters()] == trained
    assert not torch.allclose(tuned(batch, ask)["logprobs"], wanted, atol=1e-2)
    with base.without_adapter():  # nothing to switch off
        torch.testing.assert_close(base(batch, ask)["logprobs"], wanted)


def test_a_frozen_model_is_kept_in_low_precision_alone() -> None:
    source = Source(config=FAMILIES["llama"])
    frozen = HFModelFactory(source, compute_dtype=torch.bfloat16, frozen=True)()
    assert not any(p.requires_grad for p in frozen.parameters())
    batch, ask = make_batch(), frozenset({Output.LOGPROBS})
    low = HFModelFactory(source, compute_dtype=torch.bfloat16)()
    torch.testing.assert_close(
        frozen(batch, ask)["logprobs"], low(batch, ask)["logprobs"], atol=0.02, rtol=0.02
    )
