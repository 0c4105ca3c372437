"""Tokens' losses with weights: dft as TRL has it, eaft and asft as LLaMA-Factory does (``tests/peers``)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model_families import build_family, make_batch, reference_logits, reference_logprobs

from paceline.algorithms.supervised.distillation import Distillation
from paceline.algorithms.supervised.sft import SFT
from paceline.models.heads.chunked_cross_entropy import HeadShape
from paceline.models.heads.lm_head import LIKELIEST
from paceline.models.heads.token_logprobs import RequiredStats, TokenStats
from paceline.protocols.batch import IGNORE_INDEX
from paceline.protocols.roles import Role


def test_loss_and_gradients_are_those_of_the_formula() -> None:
    """Transformers' own logits give the formula; losses move, and a weight's gradient does not flow."""
    module, batch = build_family("llama"), make_batch()
    found = {}
    for kind in ("nll", "dft"):
        algorithm = SFT(loss_type=kind)
        outputs = module(batch, algorithm.required_outputs(Role.POLICY, training=True))
        loss = algorithm.losses(Role.POLICY, outputs, batch)["nll"] / algorithm.weights(batch)["nll"]
        module.zero_grad()
        loss.backward()
        found[kind] = loss.item(), [p.grad.clone() for p in module.hf.parameters() if p.grad is not None]
    logprobs = reference_logprobs(module.hf, batch)
    expected = -(logprobs.detach().exp() * logprobs).mean()
    expected.backward()
    clean = [p.grad for p in module.hf.reference[0].parameters() if p.grad is not None]
    assert abs(found["dft"][0] - expected.item()) < 1e-5 * expected.item()
    for ours, theirs in zip(found["dft"][1], clean, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
    assert found["dft"][0] < 0.5 * found["nll"][0]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_eaft_weighs_by_the_likeliest_tokens_of_transformers_logits(family: str) -> None:
    """Through a head of ours, and for a class with its own."""
    module, batch = build_family(family), make_batch()
    algorithm = SFT(loss_type="eaft")
    outputs = module(batch, algorithm.required_outputs(Role.POLICY, training=True))
    places = batch.labels[0] != IGNORE_INDEX
    few = reference_logits(module.hf, batch)[places].topk(LIKELIEST).values.log_softmax(-1)
    entropy = -(few.exp() * few).sum(-1)
    torch.testing.assert_close(outputs["likeliest_entropy"], entropy.detach(), rtol=1e-5, atol=1e-5)
    expected = -(entropy / 3 * reference_logprobs(module.hf, batch)).sum()
    found = algorithm.losses(Role.POLICY, outputs, batch)["nll"]
    assert abs(found.item() - expected.item()) < 1e-5 * expected.item()


def test_llamafactory_has_the_same_losses_of_the_same_logits() -> None:
    file = Path(__file__).parents[2] / "peers/recorded/llamafactory_losses.json"
    case: dict[str, Any] = json.loads(file.read_text())
    logits, labels = torch.tensor(case["logits"]), torch.tensor(case["labels"])
    logs, whole = logits.log_softmax(-1), torch.eye(logits.shape[1])  # a head that returns what it is given
    required = RequiredStats(entropy=True, likeliest=LIKELIEST)
    logprobs, entropy, _ = TokenStats.apply(logits, whole, None, labels, HeadShape(), required)
    teacher = torch.tensor(case["reference"]).log_softmax(-1)
    outputs = {
        "logprobs": logprobs,
        "likeliest_entropy": entropy,
        "divergence": (teacher.exp() * (teacher - logs)).sum(),
    }
    batch: Any = SimpleNamespace()
    for name, expected in case["losses"].items():
        kind, alpha = name.split()
        algorithm = (
            SFT(loss_type=kind, eaft_alpha=float(alpha))
            if kind == "eaft"
            else Distillation(loss_type=kind, alpha=float(alpha), beta=0.0, teacher_model="m")
        )
        terms = algorithm.losses(Role.POLICY, outputs, batch)
        assert abs(sum(terms.values()).item() / len(case["labels"]) - expected) < 1e-6
