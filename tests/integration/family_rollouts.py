"""Answers of a family's tiny model, and two steps of GRPO on them; see ``family_worker``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.algorithms.on_policy.grpo import GRPO
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.generation.sampling.noise import stream_of
from paceline.protocols.roles import Role
from paceline.strategies.window.runner import make_runner
from paceline.training.rollout.answer_batches import Answer, answer_batch

PROMPTS = ((5, 9, 4, 11, 20), (7, 3), (8, 6, 12, 5, 9, 14, 3), (7, 30))  # two of one length
LONGEST, SAMPLES, STEPS = 6, 4, 2


def request(place: int, sample: int = 0, rollout: int = 0) -> Request:
    """The request for one answer to prompt ``place``."""
    return Request(PROMPTS[place], stream_of(3, rollout, place, sample), LONGEST)


def written(strategy: Any, handle: Any, requests: Sequence[Request]) -> list[Completion]:
    """The policy's answers. Collective."""
    with strategy.generating(handle) as root:
        engine = LocalEngine(root.hf, pad_id=0, stop_ids=(2,), rows=8)
        return engine.generate(requests, RolloutSampling(temperature=1.0))


def answered(strategy: Any, handle: Any, places: Sequence[int]) -> dict[str, Any]:
    """(tokens, log-probabilities) of the answers to the prompts ``places``."""
    found = written(strategy, handle, [request(place) for place in places])
    return {
        str(place): [list(one.tokens), one.logprobs.tolist()]
        for place, one in zip(places, found, strict=True)
    }


def reinforced(strategy: Any, handle: Any) -> dict[str, Any]:
    """Two steps of GRPO, each of answers of its own: the gradient norms, and the largest difference between
    a token's log-probability in training and when it was sampled.
    """
    algorithm = GRPO(max_completion_length=LONGEST, loss_type="grpo")
    asked = [(place, sample) for place in (0, 2) for sample in range(SAMPLES)]
    norms, gaps = [], []
    for step in range(STEPS):
        requests = [request(place, sample, step) for place, sample in asked]
        found = written(strategy, handle, requests)
        scores = torch.tensor([sum(t % 2 for t in one.tokens) / LONGEST for one in found])
        groups = torch.tensor([place for place, _ in asked])
        advantages, _ = algorithm.compute_advantages(scores, groups, torch.ones(len(found), dtype=torch.bool))
        batch = answer_batch(
            [
                Answer(place, asking.prompt, one.tokens, one.logprobs, float(advantage), True, True)
                for (place, _), asking, one, advantage in zip(asked, requests, found, advantages, strict=True)
            ],
            0,
            torch.float32,
        )
        handle.root.eval()
        with torch.no_grad():
            outputs = handle.root(batch, algorithm.required_outputs(Role.POLICY, training=True))
        gaps.append(float((outputs["logprobs"] - batch.at_labels("sampled")).abs().max()))
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle}, [batch, batch], algorithm, lr=1e-3, max_grad_norm=1.0
        )
        norms.append(result.grad_norm)
    return {"norms": norms, "gap": max(gaps)}
