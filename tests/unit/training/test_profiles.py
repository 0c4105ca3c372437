"""Profiles of steps: where a step's time goes, by layer, and that recording changes no number."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from paceline.config.sections.training_steps import Profile
from paceline.core.rundir import RunDir
from paceline.models.flops import multiply_adds
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.window import Window
from paceline.training.profiling import recorder
from paceline.training.profiling.breakdown import (
    COMMUNICATION,
    LAYER,
    OTHER,
    STEP,
    Op,
    breakdown,
    sentence,
    text,
)
from paceline.training.profiling.recorder import ROOT, Scopes, operations, profile_of


def test_time_is_computing_moving_or_waiting() -> None:
    step = Op(STEP, 0, 1000, 1000)
    layer = Op(f"{LAYER}Mlp", 0, 400, 100, step)
    ops = [
        step,
        layer,
        Op("aten::mm", 100, 300, 200, layer, sequence=5, allocated=64),
        Op("gloo:all_reduce", 200, 500, 300),
        Op("aten::add", 600, 700, 100, step),
        Op("aten::late", 1500, 1600, 100),
    ]
    back = Op("autograd::engine::evaluate_function: MmBackward0", 700, 800, 20, step, sequence=5)
    found = breakdown([*ops, back, Op("aten::mm", 710, 790, 80, back)])
    assert found.seconds == pytest.approx(1e-3) and found.busy == pytest.approx(0.38e-3)
    assert found.hidden == pytest.approx(0.1e-3) and found.exposed == pytest.approx(0.2e-3)
    assert found.waiting == pytest.approx(0.42e-3)
    assert found.busy + found.exposed + found.waiting == pytest.approx(found.seconds)
    assert found.layers == pytest.approx({"Mlp": 0.3e-3, COMMUNICATION: 0.3e-3, OTHER: 0.1e-3})
    assert found.operations["aten::mm"] == (pytest.approx(0.28e-3), 2) and found.allocated["Mlp"] == 64
    said = sentence(4, 0, found)
    assert "step 4 on rank 0 took 0.001 s" in said and "communication 30%, 33% of it hidden" in said
    assert "waiting or Python 42%" in said


def test_a_devices_kernels_are_its_time() -> None:
    step = Op(STEP, 0, 1000, 0)
    host = Op("aten::mm", 0, 10, 400, step)
    kernels = [Op("gemm", 100, 500, 0, on_device=True), Op("ncclKernel", 400, 600, 0, on_device=True)]
    found = breakdown([step, host, *kernels])
    assert found.busy == pytest.approx(4e-4) and found.hidden == pytest.approx(1e-4)
    assert found.exposed == pytest.approx(1e-4) and found.waiting == pytest.approx(5e-4)


def test_a_step_that_was_not_recorded_is_no_profile() -> None:
    with pytest.raises(ValueError, match="not recorded"):
        breakdown([Op("aten::mm", 0, 1, 1)])


class Fused(nn.Module):
    """Computes its Linear's product without calling it, as fused kernels do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.inner.weight.T)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused = Fused(), Fused()
        self.parts = (self,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.first(x) * 2).sum()


def recorded_ops(root: Any, scopes: Scopes) -> tuple[list[Op], torch.Tensor]:
    x = torch.ones(8, 16, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as made, scopes.around(), record_function(STEP):
        loss = root(x)
        loss.backward()
    return operations(made), loss.detach()


def test_a_fused_kernel_counts_for_the_module_that_calls_it_forward_and_backward() -> None:
    root: Any = Plain()
    expected = root(torch.ones(8, 16)).detach()
    scopes = Scopes([root])
    ops, loss = recorded_ops(root, scopes)
    assert torch.equal(loss, expected) and not root._forward_hooks and not root.first._forward_hooks
    found = breakdown(ops)
    assert set(found.layers) - {OTHER} == {"Fused", ROOT}
    products = [op for op in ops if op.name == "aten::mm"]
    assert len(products) == 3  # forward, and two of the backward
    alone = breakdown(
        [op for op in ops if op.name == STEP or op in products or op.is_scope or "autograd" in op.name]
    )
    assert alone.operations["aten::mm"][0] <= alone.layers["Fused"]
    counts = {root.first.inner: 10.0, root.unused.inner: 4.0, root: 1.0}
    assert scopes.by_kind(counts) == {"Fused": 10.0, ROOT: 5.0}


def batch() -> Batch:
    labels = torch.arange(8)[None].clone()
    labels[0, -1] = IGNORE_INDEX
    ids, ends = torch.arange(8)[None], torch.tensor([0, 5, 8], dtype=torch.int32)
    return Batch(ids, labels, ids.clone(), ends, 5, torch.arange(2), 2)


class Attention(nn.Module):
    layer_idx = 0

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(16, 16, bias=False)


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hf: Any = nn.Module()
        self.hf.attention, self.hf.lm_head = Attention(), nn.Linear(16, 32, bias=False)
        text = SimpleNamespace(num_attention_heads=2, hidden_size=16)
        self.hf.config = SimpleNamespace(get_text_config=lambda: text)
        self.hf.get_output_embeddings = lambda: self.hf.lm_head
        self.parts = (self.hf,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.hf.attention.q.weight


def test_products_are_counted_from_shapes() -> None:
    root: Any = Root()
    found = multiply_adds(root, batch(), 8)
    assert found[root.hf.attention.q] == 16 * 16 * 8 and found[root.hf.lm_head] == 16 * 32 * 7
    assert found[root.hf.attention] == 2 * (5 * 5 + 3 * 3) * 16


def test_frozen_weights_get_no_gradient_and_stages_count_each(tmp_path: Any) -> None:
    """An adapter's base: forward and the gradient of its input; attention has no weights and counts whole."""
    made, root = around(tmp_path, [], steps=[5])
    root.hf.attention.q.requires_grad_(False)
    with made(Window(4, 0, [batch()])):
        root(torch.ones(8, 16))
    numbers = json.loads((tmp_path / "profile" / "step-00000005-rank-00000.json").read_text())
    assert numbers["flops"] == {ROOT: 2 * (2 * 16 * 16 * 8 + 3 * 16 * 32 * 7 + 3 * 2 * 34 * 16)}
    both: Any = nn.Module()  # a rank with two stages of a pipeline
    both.hf, both.stages = root.hf, nn.ModuleList([root, second := Root()])
    both.parts = (root.hf, second.hf)
    found = multiply_adds(both, batch(), 8)
    assert found[second.hf.lm_head] == 16 * 32 * 7 and found[second.hf.attention] == 2 * 34 * 16


def around(tmp_path: Any, heard: list[Any], **asked: Any) -> Any:
    root = Root()
    optimizer = torch.optim.SGD(root.parameters(), lr=0.1)
    handle = SimpleNamespace(root=root, roots=(root,), trained=True, optimizer=optimizer)
    plan: Any = SimpleNamespace(compile=False, recompute=False, mesh=SimpleNamespace(tp=1))
    world: Any = SimpleNamespace(is_main=True, rank=asked.pop("rank", 0), device=torch.device("cpu"))
    run = RunDir.at(tmp_path)
    made = profile_of(Profile(**asked), plan, world, run, {"policy": handle}, heard.append, range(3, 11))  # type: ignore[dict-item]
    return made, root


def test_only_the_steps_that_are_named_are_recorded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    made, root = around(tmp_path, heard, steps="2,5,400")
    assert [(d.code, d.found) for d in heard] == [("profile.beyond", "2, 400")]
    for step in (4, 5, 6):
        with made(Window(step - 1, 0, [batch()])):
            root(torch.ones(8, 16)).sum().backward()
    names = sorted(path.name for path in (tmp_path / "profile").iterdir())
    one = "step-00000005-rank-00000"
    assert names == [f"{one}.json", f"{one}.trace.json.gz", f"{one}.txt"]
    numbers = json.loads((tmp_path / "profile" / f"{one}.json").read_text())
    assert numbers["flops"] == {ROOT: 6 * (16 * 16 * 8 + 16 * 32 * 7 + 2 * 34 * 16)}
    assert numbers["states"]["weights"] == 4 * (16 * 16 + 16 * 32) and ROOT in numbers["layers"]
    assert heard[-1].code == "profile.step" and heard[-1].where.endswith(f"{one}.txt")
    whole = (tmp_path / "profile" / f"{one}.txt").read_text()
    assert heard[-1].what in whole and "aten::mm" in whole
    # A profile that cannot be written ends no run
    monkeypatch.setattr(recorder, "breakdown", lambda ops: (_ for _ in ()).throw(OSError("disk full")))
    with made(Window(4, 0, [batch()])):
        pass
    assert heard[-1].code == "profile.failed" and "disk full" in heard[-1].found


@pytest.mark.parametrize("memory", [True, False])
def test_bytes_are_recorded_unless_switched_off(tmp_path: Any, memory: bool) -> None:
    made, root = around(tmp_path, [], steps=[5], memory=memory)
    with made(Window(4, 0, [batch()])):
        root(torch.ones(8, 16)).sum().backward()
    (file,) = (tmp_path / "profile").glob("*0.json")
    assert bool(sum(json.loads(file.read_text())["allocated"].values())) == memory


def test_an_error_of_the_step_is_its_own(tmp_path: Any) -> None:
    made, root = around(tmp_path, [], steps=[5])
    with pytest.raises(ZeroDivisionError), made(Window(4, 0, [batch()])):
        raise ZeroDivisionError
    assert not root._forward_hooks and not (tmp_path / "profile").exists()


@pytest.mark.parametrize(
    ("ranks", "rank", "is_there"), [((0,), 1, False), ("all", 1, True), ("1-2", 1, True)]
)
def test_the_ranks_that_are_named_record(tmp_path: Any, ranks: Any, rank: int, is_there: bool) -> None:
    made, _ = around(tmp_path, [], steps=[5], ranks=ranks, rank=rank)
    assert (made is not None) == is_there


@pytest.mark.parametrize(
    ("given", "steps"), [(3, (3,)), ("10-12,5", (5, 10, 11, 12)), ([3, "7-8"], (3, 7, 8))]
)
def test_steps_are_numbers_and_ranges(given: Any, steps: tuple[int, ...]) -> None:
    assert Profile(steps=given).steps == steps


@pytest.mark.parametrize("given", [[], "x", "5-3", "1-1000", {"a": 1}])
def test_other_steps_are_refused(given: Any) -> None:
    with pytest.raises(ValidationError):
        Profile(steps=given)


def test_the_text_has_a_rate_for_what_is_counted() -> None:
    found = breakdown([Op(STEP, 0, 2e6, 0), Op("aten::mm", 0, 1e6, 1e6)])
    whole = text(1, 0, found, {OTHER: 3e9}, {"weights": 2048})
    assert (
        "other                              1.0000   100%     3.00      3.0" in whole and "2.00 KiB" in whole
    )
