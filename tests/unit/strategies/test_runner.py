"""A strategy stays narrow, and the runner keeps ranks together that have unequally much to evaluate."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from tiny_parts import TinyObjective, TinyRoot, make_batch, plan

from paceline.core.errors import ConfigError, PacelineError
from paceline.plan.plan import OptimizerSpec
from paceline.plan.strategies.spec import strategy_specs
from paceline.protocols.algorithm import WindowMeans
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy, strategy_class
from paceline.strategies.strategy import Single, Strategy
from paceline.strategies.window.runner import WindowRunner, blank_batch, make_runner

MOST = 14


def public(cls: type) -> set[str]:
    return {
        name
        for name, member in vars(cls).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }


def test_a_strategy_has_few_methods_and_the_runner_calls_no_others() -> None:
    methods = public(Strategy)
    assert len(methods) <= MOST, sorted(methods)
    source = inspect.getsource(WindowRunner)
    called = {part.split("(")[0] for part in source.split("self.strategy.")[1:] if "(" in part.split()[0]}
    assert called and called <= methods


@pytest.mark.parametrize("old", ["grad_norm", "step", "microstep", "place", "train_window"])
def test_a_method_that_no_window_calls_any_more_is_refused_by_name(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An averaging in ``grad_norm`` would be passed by, and every rank would train alone."""
    monkeypatch.setitem(globals(), "Old", type("Old", (Single,), {old: lambda *_: None}))
    with pytest.raises(ConfigError, match=rf"strategy.not_a_strategy(.|\n)*{old}"):
        strategy_class(f"{__name__}:Old")


def test_no_strategy_of_ours_is_refused() -> None:
    pytest.importorskip("deepspeed")
    for spec in strategy_specs():
        assert strategy_class(spec.name).can_generate != spec.stages


def test_finish_is_norm_clipping_and_step_and_leaves_a_model_alone_whose_gradients_are_no_numbers() -> None:
    strategy = make_strategy("single", World.single(), plan())
    handle = strategy.prepare(Role.POLICY, lambda: TinyRoot(), OptimizerSpec(name="sgd", learning_rate=1.0))  # type: ignore[arg-type]
    before = [p.detach().clone() for p in handle.parameters()]
    for parameter in handle.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    count = sum(p.numel() for p in handle.parameters())
    outcome = strategy.finish(handle, lr=0.5, max_grad_norm=1.0)
    assert float(outcome.grad_norm) == pytest.approx(2.0 * count**0.5) and outcome.loss_scale is None
    length = float(outcome.grad_norm)
    for mine, old in zip(handle.parameters(), before, strict=True):
        assert torch.allclose(mine, old - 0.5 * 2.0 / (length + 1e-6), rtol=0, atol=1e-12)
    after = [p.detach().clone() for p in handle.parameters()]
    handle.parameters()[0].grad.flatten()[0] = float("nan")  # type: ignore[union-attr]
    assert torch.isnan(strategy.finish(handle, lr=0.5, max_grad_norm=1.0).grad_norm)
    assert all(torch.equal(p, q) for p, q in zip(handle.parameters(), after, strict=True))


class Counted(Single):
    """A forward is a collective: every rank must make as many."""

    def __init__(self, world: World, made: Any) -> None:
        super().__init__(world, made)
        self.collective_forward = True


@pytest.fixture
def runner() -> Callable[[list[int]], WindowRunner]:
    """A runner whose other ranks have ``others`` micro-batches left at each agreement, one after the
    other.
    """

    def make(others: list[int]) -> WindowRunner:
        made = WindowRunner(Counted(World.single(), plan()))  # type: ignore[arg-type]
        left = iter(others)
        made.world = SimpleNamespace(all_reduce_max_float=lambda own: [max(own[0], next(left))])  # type: ignore[assignment]
        return made

    return make


@pytest.mark.parametrize(
    ("own", "others", "forwards"),
    [
        (3, [3], 3),
        (3, [5], 5),
        (5, [3], 5),
        (8, [8, 2], 10),
        (8, [8, 0], 8),
        (10, [8, 8, 1], 17),
        (20, [8, 4, 0], 20),
    ],
)
def test_a_rank_with_fewer_micro_batches_goes_on_with_blank_ones(
    runner: Callable[..., WindowRunner], own: int, others: list[int], forwards: int
) -> None:
    batches = [make_batch([i]) for i in range(own)]
    given = list(runner(others)._given(batches))
    assert len(given) == forwards and all(a is b for a, b in zip(given, batches, strict=False))
    assert sum(b.num_rows for b in given) == own and all(int(b.num_labels()) == 0 for b in given[own:])


def test_nothing_is_read_further_ahead_than_it_is_agreed() -> None:
    """An evaluation set is not held in memory."""
    made, taken = make_runner(make_strategy("single", World.single(), plan())), []

    def batches() -> Any:
        for i in range(20):
            taken.append(i)
            yield make_batch([i])

    assert isinstance(made, WindowRunner)
    given = made._given(batches())
    assert isinstance(next(given), Batch) and len(taken) == 8
    with pytest.raises(PacelineError, match="strategy.empty_window"):
        list(made._given([]))


@pytest.mark.parametrize("main", [True, False])
def test_every_rank_clips_by_rank_0s_norm(main: bool) -> None:
    """Processors that add in another order would clip by another length."""
    strategy: Strategy = Single(World.single(), plan())  # type: ignore[arg-type]
    handle: Handle = strategy.prepare(Role.POLICY, lambda: TinyRoot(), OptimizerSpec(name="sgd"))  # type: ignore[arg-type]
    for parameter in handle.parameters():
        parameter.grad = torch.ones_like(parameter)
    own: list[float] = []

    def summed(given: torch.Tensor) -> torch.Tensor:
        own.append(float(given))
        return torch.full_like(given, 3.0)

    strategy.world = SimpleNamespace(is_main=main, device=torch.device("cpu"), all_reduce_tensor=summed)  # type: ignore[assignment]
    assert float(strategy.finish(handle, lr=0.0, max_grad_norm=None).grad_norm) == 3.0
    assert (own[0] > 0.0) == main


class Centered(TinyObjective):
    """Σ nll · (the mean nll of a label over the whole window's other rows): no micro-batch can tell its
    loss by itself.
    """

    window_means = WindowMeans((Role.POLICY,), "others")
    seen: ClassVar[list[float]] = []

    def window_sums(self, outputs: Any, batch: Batch) -> Any:
        return {
            "mean": (outputs[Role.POLICY]["nll"], batch.num_labels()),
            "none": (batch.num_labels(), batch.num_labels() * 0),
        }

    def losses(self, role: Role, outputs: Any, batch: Batch) -> Any:
        assert (
            batch.extras["mean"].shape == batch.document_ids.shape
            and float(batch.extras["none"].sum()) == 0.0
        )
        self.seen.append(float(batch.extras["mean"][0]))
        return {"nll": outputs["nll"] * batch.extras["mean"][0]}


@pytest.mark.parametrize("evaluated", [True, False])
def test_losses_have_the_means_of_a_whole_window_before_its_first_backward(evaluated: bool) -> None:
    strategy = make_strategy("single", World.single(), plan())
    handles = {
        Role.POLICY: strategy.prepare(
            Role.POLICY, lambda: TinyRoot(), OptimizerSpec(name="sgd", learning_rate=1.0)
        )
    }  # type: ignore[arg-type]
    others = [make_batch([20 + i, 40 + i]) for i in range(3)]
    batches = [replace(make_batch([i]), others={"others": other}) for i, other in enumerate(others)]
    with torch.no_grad():
        found = [handles[Role.POLICY].root(other, frozenset({Output.NLL}))["nll"] for other in others]
    mean = float(sum(found)) / sum(int(other.num_labels()) for other in others)
    made, objective = make_runner(strategy), Centered()
    objective.seen.clear()
    if evaluated:
        means = made.window_means(handles, batches, objective)
        sums = made.eval_window(handles, (batch.with_numbers(means) for batch in batches), objective)
        assert sums.rows == 3
    else:
        was = handles[Role.POLICY].root.training
        result = made.train_window(handles, batches, objective, lr=0.1, max_grad_norm=None)
        assert result.grad_norm and handles[Role.POLICY].root.training == was
    assert objective.seen == pytest.approx([mean] * 3, abs=1e-12)
    assert made.window_means(handles, batches, TinyObjective()) == {}


def test_a_blank_batch_weighs_nothing_with_the_others_that_go_with_it() -> None:
    blank = blank_batch(replace(make_batch([1]), others={"others": make_batch([2, 3])}))
    assert int(blank.num_labels()) == 0 and int(blank.others["others"].num_labels()) == 0
    assert blank.others["others"].document_ids.tolist() == [-1, -1]
