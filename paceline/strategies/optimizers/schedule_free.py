"""Schedule-free optimizers (Defazio et al. 2024, arXiv:2405.15682): training steps weights y, and everything
else takes their average x.

Between steps the model holds y, exactly as the optimizer left it. Evaluation, generation and the forwards
that a rollout needs run inside ``averaged``, which puts x in place and y back, bit for bit. A checkpoint's
``param`` is x, for export and any other reader; ``y`` is next to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn

from paceline.protocols.shard import ShardReader

Y = "y"  # kind of the weights that are trained, beside the averaged ones
#: numbers of a parameter group that go on with its state
_NUMBERS: dict[str, type] = {"k": int, "weight_sum": float, "lr_max": float}
Group = dict[str, object]


class Averaging(Protocol):
    """What is used of the optimizers of the package schedulefree."""

    param_groups: list[Group]
    state: dict[nn.Parameter, dict[str, Tensor]]

    def eval(self) -> None: ...

    def train(self) -> None: ...


def averages(optimizer: object) -> TypeGuard[Averaging]:
    """Whether the optimizer keeps averaged weights next to those that it trains."""
    return callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))


@contextlib.contextmanager
def averaged(optimizer: object, refresh: Callable[[], None]) -> Iterator[None]:
    """Put the averaged weights in place inside the context; nested calls and other optimizers: no effect.

    ``refresh`` is called after each change, to renew copies of the weights. A second copy of the trained
    weights is held meanwhile.
    """
    if not averages(optimizer) or not any(group["train_mode"] for group in optimizer.param_groups):
        yield
        return
    # A copy, as y → x → y by the package's formulas would not come back to the same bits.
    trained = [(p, p.detach().clone()) for p in optimizer.state if "z" in optimizer.state[p]]
    optimizer.eval()
    refresh()
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, y in trained:
                parameter.copy_(y)
        for group in optimizer.param_groups:
            group["train_mode"] = True
        refresh()


def has_average(optimizer: object, parameter: nn.Parameter) -> bool:
    """Whether the optimizer has averaged weights of ``parameter``, which it has after its first step."""
    return averages(optimizer) and "z" in optimizer.state.get(parameter, {})


@torch.no_grad()
def average_of(optimizer: object, parameter: nn.Parameter) -> Tensor | None:
    """Return the averaged weights of ``parameter``; None if the optimizer has none, or has not stepped it.

    x = y + (z - y)(1 - 1/beta), as the package's ``eval`` computes it.
    """
    if not has_average(optimizer, parameter) or not averages(optimizer):
        return None
    group = group_of(optimizer, parameter)
    betas = group.get("betas")
    # AdamW calls it the first beta, SGD momentum.
    beta = betas[0] if isinstance(betas, (tuple, list)) else group["momentum"]
    assert isinstance(beta, float)
    return parameter.detach().lerp(optimizer.state[parameter]["z"], 1 - 1 / beta)


def numbers_of(optimizer: object, parameter: nn.Parameter) -> dict[str, object]:
    """Return the group's numbers that belong to the state of ``parameter``."""
    if not averages(optimizer) or parameter not in optimizer.state:
        return {}
    group = group_of(optimizer, parameter)
    return {name: of(group[name]) for name, of in _NUMBERS.items()}


def take_numbers(optimizer: object, parameter: nn.Parameter, state: dict[str, Tensor | float]) -> None:
    """Move the group's numbers from a state that was read to the group of ``parameter``."""
    if averages(optimizer):
        group = group_of(optimizer, parameter)
        for name in _NUMBERS.keys() & state.keys():
            group[name] = state.pop(name)


def read_trained(
    optimizer: object, reader: ShardReader, role: str, name: str, offsets: tuple[int, ...], target: Tensor
) -> None:
    """Replace the averaged weights in ``target``, the block at ``offsets``, by those that ``optimizer`` goes
    on to train, where the checkpoint has them.
    """
    if averages(optimizer) and reader.has(role, name, Y) and target.numel():
        target.copy_(reader.read_block(role, name, Y, offsets, tuple(target.shape)))


def group_of(optimizer: Averaging, parameter: nn.Parameter) -> Group:
    """Return the parameter group of ``parameter``."""
    for group in optimizer.param_groups:
        members = group["params"]
        if isinstance(members, list) and any(p is parameter for p in members):
            return group
    raise KeyError("the parameter is not one of the optimizer's")
