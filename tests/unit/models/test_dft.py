"""``training.sft.loss_type: dft``: each token's loss weighted by its own probability, as TRL does."""

from __future__ import annotations

import torch
from model_families import build_family, make_batch, reference_logprobs

from paceline.algorithms.supervised.sft import SFT
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
