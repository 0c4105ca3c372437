"""Rotary frequencies that follow the length: every document gets those it gets alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from family_sweep import alone
from model_families import FAMILIES, Source, make_batch, spread_out

from paceline.models.factory import HFModelFactory
from paceline.protocols.roles import Output

_FACTORS = {"short_factor": [1.0] * 4, "long_factor": [3.0, 2.0, 2.5, 4.0]}
BY_LENGTH: dict[str, dict[str, Any]] = {
    "dynamic": {
        **FAMILIES["llama"],
        "max_position_embeddings": 8,
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    },
    "longrope": {
        **FAMILIES["phi3"],
        "original_max_position_embeddings": 8,
        "rope_scaling": {"type": "longrope", **_FACTORS},
    },
}
LOGPROBS = frozenset({Output.LOGPROBS})


@pytest.mark.parametrize("kind", BY_LENGTH)
@pytest.mark.parametrize("attention", ["auto", "sdpa"])
def test_short_documents_beside_long_ones_keep_their_frequencies(kind: str, attention: str) -> None:
    module = HFModelFactory(Source(config=BY_LENGTH[kind]), attention=attention, master_dtype=torch.float64)()
    spread_out(module)
    batch = make_batch((5, 12, 3, 20, 9, 7))
    for _ in range(2):  # nothing is remembered of the batch before
        expected, _ = alone(module.hf, batch)
        got = module(batch, LOGPROBS)["logprobs"]
        assert float((got - expected.to(got.dtype)).detach().abs().max()) < 1e-6


def test_without_the_mend_they_would_not() -> None:
    """The batch is one that tells: the longest document's frequencies change the others'."""
    config = BY_LENGTH["longrope"]
    module = HFModelFactory(Source(config=config))()
    spread_out(module)
    short = make_batch((5,))
    rope = next(m for m in module.hf.modules() if hasattr(m, "rope_type"))
    x = torch.zeros(1, 1, 32)
    near, far = torch.arange(5)[None], torch.arange(20)[None]
    assert not torch.equal(rope(x, near)[0], rope(x, far)[0][:, :5])
    assert module(short, LOGPROBS)["logprobs"].shape == (4,)
