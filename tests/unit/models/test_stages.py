"""Cutting models into pipeline stages: what they compute in a row is what the whole computes, under the
whole's names.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from model_families import FAMILIES, Source, make_batch, spread_out
from test_state_layers import Wide

from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.models.parallel import pipeline_stages
from paceline.models.parallel.pipeline_stages import (
    layers_pass_tuples,
    small_layers_pass_tuples,
    split,
    split_layers,
    token_ids,
)
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output
from paceline.strategies.pipeline.schedules import FixedShape

ASK = frozenset({Output.NLL, Output.CORRECT, Output.LOGPROBS})
CUT = (
    "llama",
    "llama_tied",
    "qwen2_window",
    "gemma",
    "gemma2",
    "gemma3",
    "cohere",
    "granite",
    "gpt_neox",
    "bloom",
)


@pytest.fixture
def wide() -> Iterator[None]:
    """Bloom's softmax is in fp32 by its class: its rounding would depend on the rows' length and the
    processor.
    """
    with Wide():
        yield


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("family", CUT)
def test_stages_in_a_row_are_the_whole_model(family: str) -> None:
    factory = HFModelFactory(Source(config=FAMILIES[family]), master_dtype=torch.float64)
    whole, other = factory(BuildOptions(engine_casts=True)), factory(BuildOptions(engine_casts=True))
    spread_out(whole), spread_out(other)
    batches = [make_batch((3, 7, 1)), make_batch((9,), labels="some")]
    expected = [whole(batch, ASK) for batch in batches]
    names = dict(whole.plain_named_parameters())
    grads = dict(
        zip(names, torch.autograd.grad(sum(e["nll"] for e in expected), list(names.values())), strict=True)
    )

    stages = split(other, 2, [0, 1])
    held = [(name, p) for stage in stages for name, p in stage.plain_named_parameters()]
    assert {name for name, _ in held} == set(names)
    tied = FAMILIES[family].get("tie_word_embeddings", False) or family in (
        "gemma",
        "gemma2",
        "gemma3",
        "cohere",
        "bloom",
    )
    assert len(held) == len(names) + tied and (stages[0].tied_name is not None) == tied

    packed = stages[0].attention.layout == "packed"
    shape = FixedShape.of(batches, packed)
    total = torch.zeros((), dtype=torch.float64)
    for batch, answer in zip(batches, expected, strict=True):
        fitted = shape.fit(batch)
        assert fitted.num_labels() == batch.num_labels() and fitted.num_tokens == batch.num_tokens
        states = token_ids(fitted, packed)
        assert states.shape == (shape.rows, shape.length)
        for stage in stages:
            states = stage(states, fitted)
        got = stages[-1].answer(states, fitted, ASK)
        for name, value in answer.items():
            assert torch.allclose(got[name], value, atol=1e-12, rtol=0), name
        total = total + got["nll"]
    found: dict[str, torch.Tensor] = {}
    for (name, _), grad in zip(held, torch.autograd.grad(total, [p for _, p in held]), strict=True):
        found[name] = found[name] + grad if name in found else grad
    for name, grad in grads.items():
        assert torch.allclose(found[name], grad, atol=1e-11, rtol=1e-11), name


@pytest.mark.parametrize("family", CUT)
def test_a_small_model_of_the_class_says_how_its_stages_are_cut(family: str) -> None:
    factory = HFModelFactory(Source(config=FAMILIES[family]))
    real = layers_pass_tuples(factory(BuildOptions(engine_casts=True)), 2)
    empty = factory(BuildOptions(device=torch.device("meta"), engine_casts=True))
    assert small_layers_pass_tuples(empty, 2) is real is (family == "bloom")


def test_what_a_small_model_does_not_settle_is_left_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = BuildOptions(device=torch.device("meta"), engine_casts=True)
    assert small_layers_pass_tuples(HFModelFactory(Source(config=FAMILIES["gpt2"]))(empty), 2) is None
    llama = HFModelFactory(Source(config=FAMILIES["llama"]))(empty)
    with pytest.raises(ConfigError, match="models.too_few_layers"):
        small_layers_pass_tuples(llama, 9)
    monkeypatch.setattr(
        pipeline_stages, "shrunk", lambda config, layers: {**config, "num_attention_heads": 0}
    )
    assert small_layers_pass_tuples(llama, 2) is None


def test_a_model_that_computes_something_else_when_cut_is_refused() -> None:
    with pytest.raises(ConfigError, match="models.no_stages"):
        split(HFModelFactory(Source(config=FAMILIES["gpt2"]))(BuildOptions(engine_casts=True)), 2, [0, 1])


def test_layers_are_shared_out_evenly_and_the_head_s_stage_gets_the_fewest() -> None:
    assert [len(r) for r in split_layers(8, 4)] == [2, 2, 2, 2]
    assert [len(r) for r in split_layers(7, 4)] == [2, 2, 2, 1]
    assert [len(r) for r in split_layers(5, 4)] == [1, 2, 1, 1]
    assert [i for r in split_layers(7, 3) for i in r] == list(range(7))
    with pytest.raises(ConfigError, match="models.too_few_layers"):
        split_layers(3, 4)
