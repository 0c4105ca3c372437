"""Every algorithm on rollouts makes what is rewarded likelier: a policy of five numbers, without a model,
learns which token is the good one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from rollout_batches import alone

from paceline.algorithms.on_policy.base import OnPolicy, with_tokens
from paceline.algorithms.on_policy.grpo import GRPO
from paceline.algorithms.on_policy.reinforce_plus_plus import ReinforcePlusPlus
from paceline.algorithms.on_policy.rloo import RLOO
from paceline.protocols.roles import Output, Role
from paceline.training.rollout.answer_batches import Answer, answer_batch

PROMPTS, GROUP, LENGTH, GOOD, STEPS = 4, 4, 3, 2, 40
GROUPS = torch.arange(PROMPTS * GROUP) // GROUP
MAKERS: dict[str, Callable[[], OnPolicy]] = {
    "rloo": lambda: RLOO(beta=0.01, num_iterations=2),
    "reinforce_plus_plus": lambda: ReinforcePlusPlus(num_iterations=2),
    "reinforce_plus_plus with a baseline": lambda: ReinforcePlusPlus(
        group_baseline=True, kl_in="loss", kl_estimator="k2"
    ),
    "grpo": lambda: GRPO(num_iterations=2),
    "cispo": lambda: GRPO(loss_type="cispo", epsilon_high=5.0, num_iterations=2),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_rewarded_becomes_likelier(name: str) -> None:
    algorithm, draw = MAKERS[name](), torch.Generator().manual_seed(3)
    policy = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([policy], lr=0.1)
    losses: set[float] = set()
    for _ in range(STEPS):
        now = policy.detach().log_softmax(0)
        said = torch.multinomial(now.exp(), PROMPTS * GROUP * LENGTH, replacement=True, generator=draw).view(
            -1, LENGTH
        )
        scores = (said == GOOD).double().mean(1)
        advantages, _ = algorithm.compute_advantages(
            scores, GROUPS, torch.ones_like(GROUPS, dtype=torch.bool)
        )
        answers = [
            Answer(i, (9,), tuple(row.tolist()), now[row], float(a), True, True)
            for i, (row, a) in enumerate(zip(said, advantages, strict=True))
        ]
        batch = answer_batch(answers, 0, torch.float64)
        for field in algorithm.precomputed_fields():
            known = (
                now[said.flatten()]
                if field.role is Role.POLICY
                else torch.full((said.numel(),), math.log(0.2)).double()
            )
            batch = with_tokens(batch, field.name, known)
        whole = {
            "advantages": advantages,
            "groups": GROUPS,
            "is_scored": torch.ones_like(GROUPS, dtype=torch.bool),
        }
        ((batch,),), _ = algorithm.finalize_rollout(
            [[batch]], alone(places=[torch.arange(len(GROUPS))], **whole)
        )
        for _ in range(algorithm.passes):
            logprobs = policy.log_softmax(0)[said.flatten()]
            loss = algorithm.losses(Role.POLICY, {Output.LOGPROBS.value: logprobs}, batch)["policy"]
            optimizer.zero_grad()
            (loss / algorithm.weights(batch)["policy"]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.add(round(float(loss.detach()), 9))
    assert float(policy.detach().softmax(0)[GOOD]) > 0.8 and len(losses) >= 10
