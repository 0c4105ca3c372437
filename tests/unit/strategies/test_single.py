"""The default window on one process: exact means, clipping, skipping, state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_parts import MemoryReader, TinyObjective, TinyRoot, make_batch, plan, window

from paceline.core.errors import CheckpointError, ConfigError, PacelineError
from paceline.plan.plan import OptimizerSpec
from paceline.protocols.roles import Output, Role
from paceline.runtime.process_group.world import World
from paceline.runtime.rank_env import RankEnv
from paceline.strategies.ddp import DDP
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.replicated_state import assign, export_state, import_state
from paceline.strategies.strategy import Single, Strategy
from paceline.strategies.window.runner import make_runner

SPEC = OptimizerSpec(name="sgd", learning_rate=0.1)


def prepared(
    root: TinyRoot | None = None, spec: OptimizerSpec | None = SPEC, **options: Any
) -> tuple[Strategy, Handle]:
    strategy = make_strategy("single", World.single(), plan(**options))
    return strategy, strategy.prepare(Role.POLICY, lambda: root or TinyRoot(), spec)


def step(strategy: Strategy, handle: Handle, batches: list[Any], **options: Any) -> Any:
    return make_runner(strategy).train_window(
        {Role.POLICY: handle}, batches, TinyObjective(), **{"lr": 0.1, "max_grad_norm": None, **options}
    )


def snapshot(handle: Handle) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in handle.root.named_parameters()}


def test_a_step_is_the_gradient_of_the_token_mean_over_the_window() -> None:
    """Two micro-batches with 12 and 5 labels: the mean is over 17 tokens, not of two means."""
    batches = [make_batch([1, 2, 3]), make_batch([0, 10])]
    strategy, handle = prepared()
    result = step(strategy, handle, batches, lr=0.1)
    root = TinyRoot()
    total = sum(root(b, frozenset({Output.NLL}))["nll"] for b in batches)
    labels = sum(int(b.num_labels()) for b in batches)
    (total / labels).backward()
    assert result.weights == {"nll": labels}
    assert result.tokens == sum(b.num_tokens for b in batches)
    assert result.losses["nll"] == pytest.approx(float(total.detach()) / labels, rel=1e-14)
    norm = torch.nn.utils.clip_grad_norm_(root.parameters(), float("inf"))
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-12)
    for (name, mine), (_, theirs) in zip(
        handle.root.named_parameters(), root.named_parameters(), strict=True
    ):
        assert torch.allclose(mine, theirs - 0.1 * theirs.grad, rtol=0, atol=1e-15), name


@pytest.mark.parametrize("limit", [0.05, 0, None, 1e9])
def test_clipping_is_torchs(limit: float | None) -> None:
    batches = [make_batch([1, 2, 3]), make_batch([4])]
    strategy, handle = prepared()
    result = step(strategy, handle, batches, max_grad_norm=limit)
    root = TinyRoot()
    (sum(root(b, frozenset({Output.NLL}))["nll"] for b in batches) / result.weights["nll"]).backward()
    norm = torch.nn.utils.clip_grad_norm_(root.parameters(), limit or float("inf"))
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-12)
    for mine, theirs in zip(handle.root.parameters(), root.parameters(), strict=True):
        assert torch.allclose(mine, theirs - 0.1 * theirs.grad, rtol=0, atol=1e-15)


def test_the_learning_rate_is_an_argument() -> None:
    moved = []
    for lr in (0.0, 0.1, 0.2):
        strategy, handle = prepared()
        before = snapshot(handle)
        step(strategy, handle, window(0, 0, 1), lr=lr)
        moved.append(
            max(float((p - before[n]).abs().max().detach()) for n, p in handle.root.named_parameters())
        )
    assert moved[0] == 0.0
    assert moved[2] == pytest.approx(2 * moved[1], rel=1e-9)


def test_it_learns_and_compute_weights_are_refreshed_after_each_step() -> None:
    root = TinyRoot()
    strategy, handle = prepared(root, OptimizerSpec(learning_rate=0.02))
    refreshed = root.refreshed
    losses = [
        step(strategy, handle, window(s, 0, 1), lr=0.02, max_grad_norm=1.0).losses["nll"] for s in range(40)
    ]
    assert losses[-1] < 0.5 * losses[0]
    assert root.refreshed == refreshed + 40


def test_a_window_without_labels_is_skipped_before_the_forward() -> None:
    strategy, handle = prepared()
    before = snapshot(handle)
    result = step(strategy, handle, [make_batch([1], labelled=False), make_batch([-1])])
    assert (result.skipped, result.grad_norm, result.losses, result.weights) == (
        "no_labels",
        None,
        {"nll": 0.0},
        {"nll": 0},
    )
    assert result.tokens == make_batch([1]).num_tokens
    assert all(torch.equal(before[n], p) for n, p in handle.root.named_parameters())


def test_numbers_that_are_not_finite_leave_the_parameters_alone() -> None:
    class Broken(TinyObjective):
        def losses(self, role: Any, outputs: Any, batch: Any) -> Any:
            return {"nll": outputs["nll"] * float("nan")}

    strategy, handle = prepared()
    before = snapshot(handle)
    result = make_runner(strategy).train_window(
        {Role.POLICY: handle}, window(0, 0, 1), Broken(), lr=0.1, max_grad_norm=1.0
    )
    assert result.skipped is None
    assert result.grad_norm is not None
    assert result.losses["nll"] != result.losses["nll"]
    assert result.grad_norm != result.grad_norm
    assert all(torch.equal(before[n], p) for n, p in handle.root.named_parameters())


def test_two_terms_with_one_empty() -> None:
    """A term whose weight is 0 in the whole window counts as 0 and does not divide by zero."""

    class TwoTerms(TinyObjective):
        def weights(self, batch: Any) -> Any:
            return {"nll": batch.num_labels(), "extra": torch.tensor(0)}

        def losses(self, role: Any, outputs: Any, batch: Any) -> Any:
            return {"nll": outputs["nll"], "extra": outputs["nll"] * 0.0}

    results = []
    for objective in (TinyObjective(), TwoTerms()):
        strategy, handle = prepared()
        results.append(
            make_runner(strategy).train_window(
                {Role.POLICY: handle}, window(0, 0, 1), objective, lr=0.1, max_grad_norm=1.0
            )
        )
    assert results[1].losses == {"extra": 0.0, "nll": results[0].losses["nll"]}
    assert results[1].grad_norm == results[0].grad_norm


def test_dropout_follows_the_seed_of_the_micro_step() -> None:
    losses = []
    for seed in (1, 1, 2):
        strategy, handle = prepared(TinyRoot(dropout=0.5))
        losses.append(
            step(
                strategy, handle, window(0, 0, 1), generator_seed=lambda j, seed=seed: 100 * seed + j
            ).losses["nll"]
        )
    assert losses[0] == losses[1] != losses[2]


def test_evaluation_leaves_no_trace_and_needs_a_batch() -> None:
    strategy, handle = prepared(TinyRoot(dropout=0.5))
    handle.root.train()
    sums = [
        make_runner(strategy).eval_window({Role.POLICY: handle}, window(0, 0, 1), TinyObjective())
        for _ in range(2)
    ]
    assert sums[0] == sums[1], "dropout was active"
    assert handle.root.training
    assert all(p.grad is None for p in handle.root.parameters())
    with pytest.raises(PacelineError, match="strategy.empty_window"):
        make_runner(strategy).eval_window({Role.POLICY: handle}, [], TinyObjective())


def test_frozen_models_have_no_optimizer_and_no_gradients() -> None:
    _, handle = prepared(spec=None)
    assert not handle.trained
    assert not handle.root.training
    assert not any(p.requires_grad for p in handle.root.parameters())


@pytest.mark.parametrize(
    "name", ["adamw_torch_fused", "adamw_torch", "sgd", "adagrad", "rmsprop", "adafactor"]
)
def test_state_goes_out_and_comes_back_bit_for_bit(name: str) -> None:
    spec = OptimizerSpec(name=name, learning_rate=0.01, args={"momentum": 0.9} if name == "sgd" else {})
    strategy, handle = prepared(TinyRoot(torch.float32), spec)
    for s in range(3):
        step(strategy, handle, window(s, 0, 1), lr=0.01, max_grad_norm=1.0)
    reader = MemoryReader(list(strategy.export_state(handle)))
    other_strategy, other = prepared(TinyRoot(torch.float32), spec)
    other_strategy.import_state(other, reader)
    again = MemoryReader(list(other_strategy.export_state(other)))
    assert again.tensors.keys() == reader.tensors.keys()
    assert all(
        torch.equal(reader.tensors[k], again.tensors[k]) and reader.tensors[k].dtype == again.tensors[k].dtype
        for k in reader.tensors
    )
    results = [
        [step(st, h, window(s, 0, 1), lr=0.01, max_grad_norm=1.0) for s in range(3, 6)]
        for st, h in ((strategy, handle), (other_strategy, other))
    ]
    assert results[0] == results[1]
    assert all(
        torch.equal(p, q) for p, q in zip(handle.root.parameters(), other.root.parameters(), strict=True)
    )


def test_names_are_plain() -> None:
    strategy, handle = prepared(spec=OptimizerSpec())
    step(strategy, handle, window(0, 0, 1))
    shards = list(strategy.export_state(handle))
    assert {s.name for s in shards} == {n for n, _ in handle.root.named_parameters()}
    assert {s.kind for s in shards} == {"param", "exp_avg", "exp_avg_sq", "step"}
    assert all(s.global_shape == tuple(s.tensor.shape) and s.role == "policy" for s in shards)


def test_a_checkpoint_that_does_not_fit_is_refused() -> None:
    strategy, handle = prepared()
    reader = MemoryReader(list(strategy.export_state(handle)))
    reader.tensors["policy", "head.weight", "param"] = torch.zeros(3, 3)
    with pytest.raises(CheckpointError, match=r"head.weight.*another shape"):
        strategy.import_state(handle, reader)
    del reader.tensors["policy", "head.weight", "param"]
    with pytest.raises(CheckpointError, match=r"has no 'head.weight'"):
        strategy.import_state(handle, reader)


def test_weights_alone_can_be_imported() -> None:
    strategy, handle = prepared(spec=OptimizerSpec())
    step(strategy, handle, window(0, 0, 1))
    weights = MemoryReader([s for s in strategy.export_state(handle) if s.kind == "param"])
    other_strategy, other = prepared(spec=OptimizerSpec())
    other_strategy.import_state(other, weights)
    assert all(
        torch.equal(p, q) for p, q in zip(handle.root.parameters(), other.root.parameters(), strict=True)
    )


def test_shares_are_spread_by_bytes() -> None:
    sizes = {"embed": 100, "head": 100, **{f"layer{i}": 10 for i in range(8)}}
    owner = assign(sizes, 2)
    assert owner == assign(dict(reversed(sizes.items())), 2), "the order of a dict must not matter"
    loads = [sum(sizes[n] for n, r in owner.items() if r == rank) for rank in range(2)]
    assert loads == [140, 140]


def test_moments_that_one_rank_keeps_are_written_and_read_by_it_alone() -> None:
    """Two ranks that hold the same weights, each the moments of half of them: together they write
    everything once, whole.
    """
    spec, names = OptimizerSpec(), [n for n, _ in TinyRoot().named_parameters()]
    # the last one has no moments: it is frozen
    keepers = {name: at % 2 for at, name in enumerate(names[:-1])}
    strategy, handle = prepared(TinyRoot(torch.float32), spec)
    handle.root.get_parameter(names[-1]).requires_grad_(False)
    step(strategy, handle, window(0, 0, 1))
    whole = MemoryReader(list(export_state(handle, 0, 1)))
    everything, shares = dict(handle.optimizer.state), []  # type: ignore[union-attr]
    for rank in range(2):
        kept = {handle.root.get_parameter(n) for n, keeper in keepers.items() if keeper == rank}
        handle.optimizer.state = {p: s for p, s in everything.items() if p in kept}  # type: ignore[union-attr, assignment]
        shares.append(list(export_state(handle, rank, 2, keepers)))
    written = [(s.name, s.kind) for share in shares for s in share]
    assert len(written) == len(set(written)) and {(n, k) for _, n, k in whole.tensors} == set(written)
    for rank in range(2):
        other_strategy, other = prepared(TinyRoot(torch.float32), spec)
        import_state(other, MemoryReader([s for share in shares for s in share]), rank, keepers)
        known = {n for n, p in other.root.named_parameters() if p in other.optimizer.state}  # type: ignore[union-attr]
        assert known == {n for n, keeper in keepers.items() if keeper == rank}
        assert all(
            torch.equal(p, q) for p, q in zip(handle.root.parameters(), other.root.parameters(), strict=True)
        )
        moment = other.optimizer.state[other.root.get_parameter(names[rank])]["exp_avg"]  # type: ignore[union-attr]
        assert torch.equal(moment, whole.tensors["policy", names[rank], "exp_avg"])


def test_ddp_in_a_world_of_one_is_the_root_itself() -> None:
    strategy = make_strategy("ddp", World.single(), plan())
    handle = strategy.prepare(Role.POLICY, TinyRoot, SPEC)
    strategy.warm_up(handle, make_batch([-1]), TinyObjective())
    assert handle.module is handle.root
    assert step(strategy, handle, window(0, 0, 1)).skipped is None


def test_generating_gives_the_whole_model_in_eval_mode() -> None:
    strategy, handle = prepared()
    handle.root.train()
    with strategy.generating(handle) as model:
        assert model is handle.root
        assert not model.training
        assert not torch.is_grad_enabled()
    assert handle.root.training


class Mine(DDP):
    """A user's own strategy."""


class NotAStrategy:
    pass


def test_a_users_own_strategy_comes_in_by_name() -> None:
    made = make_strategy(f"{__name__}:Mine", World.single(), plan(strategy_options={"alpha": 2}))
    assert type(made).__name__ == "Mine"
    assert made.options == {"alpha": 2}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("dpp", "strategy.unknown"),
        (f"{__name__}:NotAStrategy", "strategy.not_a_strategy"),
        ("no_such_module:X", "core.target_module"),
    ],
)
def test_unknown_strategies_are_refused(name: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_strategy(name, World.single(), plan())
    assert caught.value.diagnostics[0].code == code


def test_single_refuses_more_than_one_process() -> None:
    world = World(0, 0, 2, 1, torch.device("cpu"), "gloo", None, RankEnv(world_size=2, local_world_size=2))
    with pytest.raises(ConfigError, match="strategy.single_world"):
        Single(world, plan())


def test_options_left_out_have_the_defaults_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "examples"))
    own = plan(world_size=1)
    own.strategy = "custom_strategy_spec:SPEC"
    assert make_strategy(own.strategy, World.single(), own).options == {"dtype": "float16"}
    own.strategy_options = {"dtype": "bfloat16"}
    assert make_strategy(own.strategy, World.single(), own).options == {"dtype": "bfloat16"}
