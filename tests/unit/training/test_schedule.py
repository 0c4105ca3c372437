"""The schedule equals Transformers' own scheduler, step by step."""

from __future__ import annotations

import pytest
import torch
from transformers import get_scheduler

from paceline.core.errors import ConfigError
from paceline.training.loop.lr_schedules import PLAIN, learning_rate_schedule, warmup_count


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("linear", {}),
        ("cosine", {}),
        ("cosine_with_restarts", {"num_cycles": 2}),
        ("polynomial", {"power": 2.0, "lr_end": 1e-7}),
        ("constant", {}),
        ("constant_with_warmup", {}),
        ("inverse_sqrt", {}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
        ("warmup_stable_decay", {"num_decay_steps": 10}),
    ],
)
def test_equals_transformers(name: str, kwargs: dict[str, float]) -> None:
    total, warmup, base = 50, 5, 3e-4
    lr = learning_rate_schedule(name, base, warmup, total, kwargs)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    reference = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=warmup,
        num_training_steps=total,
        scheduler_specific_kwargs=dict(kwargs),
    )
    for step in range(total):
        assert lr(step) == pytest.approx(reference.get_last_lr()[0], rel=1e-12, abs=1e-18)
        optimizer.step()
        reference.step()
    assert lr(7) == lr(7)  # no hidden state


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (0, 7), (3, 3), (1, 2), (7, 90), (13, 1009)])
def test_what_is_computed_here_is_transformers_to_the_bit(name: str, warmup: int, total: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    reference = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total)
    lr = learning_rate_schedule(name, 3e-4, warmup, total)
    assert [lr(step) for step in range(total)] == [
        3e-4 * float(reference.lr_lambdas[0](step)) for step in range(total)
    ]


def test_warmup_as_a_share() -> None:
    assert warmup_count(0.1, 55) == 6
    assert warmup_count(7, 55) == 7
    assert warmup_count(0, 55) == 0


@pytest.mark.parametrize("name", ["reduce_lr_on_plateau", "cosinus"])
def test_unknown_or_stateful_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="lr_scheduler_type"):
        learning_rate_schedule(name, 1e-3, 0, 10)
