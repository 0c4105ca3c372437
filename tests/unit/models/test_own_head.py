"""The head as a model's own class computes it, inside of the model: an engine's hooks do not run again."""

from __future__ import annotations

import pytest
import torch
from model_families import Source, make_batch
from tiny_families import tiny_config

from paceline.models.factory import HFModelFactory
from paceline.protocols.roles import Output


@pytest.mark.parametrize("kind", ["modernbert-decoder", "recurrent_gemma", "xlstm"])
def test_a_hook_of_the_model_runs_for_none_of_its_heads(kind: str) -> None:
    """DeepSpeed's knew their module by a number that the head's shell does not have."""
    module = HFModelFactory(Source(config=tiny_config(kind)))()
    calls: list[torch.nn.Module] = []
    module.hf.register_forward_pre_hook(lambda hf, _: calls.append(hf))
    out = module(make_batch(), frozenset({Output.NLL}))["nll"]
    out.backward()
    assert torch.isfinite(out) and calls == []
