"""Averaged weights are put in place for a while, and what is trained comes back bit for bit."""

from __future__ import annotations

import pytest
import torch
from tiny_parts import MemoryReader
from torch import nn

from paceline.plan.plan import OptimizerSpec
from paceline.protocols.shard import PARAM, Shard
from paceline.strategies import replicated_state
from paceline.strategies.optimizers import schedule_free
from paceline.strategies.optimizers.build import build_optimizer

NAMES = ["schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd"]


def stepped(name: str, steps: int = 8) -> tuple[torch.optim.Optimizer, nn.Parameter]:
    pytest.importorskip("schedulefree")
    parameter = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    optimizer = build_optimizer(OptimizerSpec(name=name, learning_rate=0.01), [("w.weight", parameter)])
    go_on(optimizer, parameter, range(steps))
    return optimizer, parameter


def go_on(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, steps: range) -> None:
    for step in steps:
        parameter.grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_the_packages_average_inside_and_the_trained_weights_after(name: str) -> None:
    optimizer, parameter = stepped(name)
    y, calls = parameter.detach().clone(), []
    expected = schedule_free.average_of(optimizer, parameter)
    with schedule_free.averaged(optimizer, lambda: calls.append(parameter.detach().clone())):
        x = parameter.detach().clone()
        with schedule_free.averaged(optimizer, lambda: calls.append(None)):
            assert torch.equal(parameter, x)
        assert torch.equal(parameter, x), "the inner context put the trained weights back"
    assert expected is not None and torch.equal(x, expected) and not torch.equal(x, y)
    assert torch.equal(parameter, y) and len(calls) == 2
    with pytest.raises(ValueError, match="inside"), schedule_free.averaged(optimizer, lambda: None):
        raise ValueError("inside")
    assert torch.equal(parameter, y)
    go_on(optimizer, parameter, range(8, 9))  # the optimizer is in its training mode again


@pytest.mark.parametrize("name", NAMES)
def test_a_save_holds_both_and_goes_on_bit_for_bit(name: str) -> None:
    optimizer, parameter = stepped(name)
    kinds = {
        PARAM: replicated_state.weights_of(optimizer, parameter),
        **replicated_state.saved_moments(optimizer, parameter, (0, 0)),
    }
    assert torch.equal(kinds["y"], parameter) and not torch.equal(kinds[PARAM], parameter)
    reader = MemoryReader(
        [Shard("policy", "w", k, tuple(t.shape), (0,) * t.ndim, t) for k, t in kinds.items()]
    )
    other = nn.Parameter(kinds[PARAM].clone())
    again = build_optimizer(OptimizerSpec(name=name, learning_rate=0.01), [("w.weight", other)])
    schedule_free.read_trained(torch.optim.SGD([other], 0.1), reader, "policy", "w", (0, 0), other.data)
    assert torch.equal(other, kinds[PARAM]), "others take the averaged weights"
    schedule_free.read_trained(again, reader, "policy", "w", (0, 0), other.data)
    replicated_state.import_moments(again, other, reader, "policy", "w")
    go_on(optimizer, parameter, range(8, 12))
    go_on(again, other, range(8, 12))
    assert torch.equal(parameter, other)


def test_other_optimizers_have_none() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.AdamW([parameter])
    with schedule_free.averaged(optimizer, lambda: pytest.fail("nothing has changed")):
        assert schedule_free.average_of(optimizer, parameter) is None
