"""Every family writes the answers of the model that is trained, or is refused by name; so do Mamba-2 layers
whose time step has bounds.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from family_answers import answers_otherwise
from model_families import Source, spread_out
from tiny_families import tiny_config

from paceline.generation import local
from paceline.models.factory import HFModelFactory
from paceline.plan.model.family import supported

LEAST = {"time_step_min": 0.5}
BOTH = {"time_step_limit": [0.5, 0.8]}
BOUNDED = {
    "zamba2": LEAST,
    "nemotron_h": LEAST,
    "mamba2": BOTH,
    "bamba": BOTH,
    "falcon_h1": BOTH,
    "granitemoehybrid": BOTH,
}


REFUSED = ("takes no cache", "a cache of its own kind", "keeps its state by itself")
FEW = ("deepseek_v3", "gemma3_text", "xlstm")


def build(kind: str, **more: Any) -> Any:
    module = HFModelFactory(Source(config={**tiny_config(kind), **more}))()
    spread_out(module)
    return module.hf.eval()


@pytest.mark.parametrize("kind", sorted(BOUNDED))
def test_answers_are_drawn_within_the_bounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = build(kind, **BOUNDED[kind])
    assert answers_otherwise(hf) == ""
    assert not any(module._forward_hooks for module in hf.modules())
    monkeypatch.setattr(local, "bounded_time_steps", lambda hf: nullcontext())
    assert "differ by" in answers_otherwise(hf)  # else this test would show nothing


@pytest.mark.parametrize(
    "kind", [*FEW, *(pytest.param(k, marks=pytest.mark.slow) for k in supported() if k not in FEW)]
)
def test_a_family_s_answers_are_its_own_or_refused(kind: str) -> None:
    found = answers_otherwise(build(kind))
    assert not found or any(words in found for words in REFUSED), found
