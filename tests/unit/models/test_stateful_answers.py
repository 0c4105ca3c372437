"""Rollouts of models whose layers pass a state from token to token: greedy as Transformers' own one by one,
for prompts of several lengths in one batch; what keeps its state outside of the cache is refused by name.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_families import Source, reference_model, spread_out
from tiny_families import tiny_config

from paceline.core.errors import ConfigError
from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.models.factory import HFModelFactory
from paceline.plan.model.family import families

GREEDY = RolloutSampling(temperature=0.0)
# by kind of layer: the delta rule, a state space beside attention, without any, and in each layer with it, a
# short convolution
FEW = ("qwen3_5_text", "granitemoehybrid", "mamba2", "falcon_h1", "lfm2_moe")
OUTSIDE = ("minimax", "recurrent_gemma")
COUNTED = sorted(kind for kind, row in families().items() if row.carries and kind not in OUTSIDE)
UNCOUNTED = ("jamba", "lfm2", "mamba", "mamba2", "falcon_mamba", "nemotron_h", "zamba2")
REST = sorted({*COUNTED, *UNCOUNTED} - set(FEW))
PROMPTS = ((5, 9, 4, 11), (7, 3), (8, 6, 12, 5, 9, 14, 3), (7, 3), (4, 10, 5, 6))


def build(kind: str) -> Any:
    module = HFModelFactory(Source(config=tiny_config(kind)))()
    spread_out(module)
    return module.hf.eval()


@pytest.mark.parametrize("kind", [*FEW, *(pytest.param(kind, marks=pytest.mark.slow) for kind in REST)])
def test_greedy_answers_are_transformers_own_one_by_one(kind: str) -> None:
    hf = build(kind)
    requests = [Request(prompt, i, 4 + i) for i, prompt in enumerate(PROMPTS)]
    found = LocalEngine(hf, pad_id=0, stop_ids=(2,), rows=4).generate(requests, GREEDY)
    clean = reference_model(hf)
    for request, answer in zip(requests, found, strict=True):
        ids = torch.tensor([request.prompt])
        said = clean.generate(ids, max_new_tokens=request.max_tokens, do_sample=False, eos_token_id=2)
        assert list(answer.tokens) == said[0, ids.shape[1] :].tolist(), kind


@pytest.mark.parametrize("kind", ["qwen3_5_text", "mamba", "llama4_text"])
def test_answers_do_not_depend_on_company(kind: str) -> None:
    """Mamba takes a mask of as many tokens as it is given, and Llama 4's chunks are counted from the first
    key, padding or not.
    """
    hf = build(kind)
    requests = [Request(prompt, i, 6) for i, prompt in enumerate(PROMPTS)]
    drawn = RolloutSampling(temperature=1.0)
    together = LocalEngine(hf, pad_id=0, stop_ids=(2,)).generate(requests, drawn)
    alone = [LocalEngine(hf, pad_id=0, stop_ids=(2,)).generate([r], drawn)[0] for r in requests]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a.logprobs, b.logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_state_outside_of_the_cache_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="generation.stateful") as caught:
        LocalEngine(build(kind), pad_id=0, stop_ids=()).generate([Request((1, 2), 1, 2)], GREEDY)
    assert "keeps its state by itself" in caught.value.diagnostics[0].found
