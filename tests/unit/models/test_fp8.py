"""Products in 8-bit floating point, emulated by torchao on a CPU, and where the plan refuses them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from model_families import FAMILIES, Source
from torch import Tensor, nn

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.models import factory, quantized_linear
from paceline.models.factory import HFModelFactory
from paceline.models.role_module import RoleModule
from paceline.plan.cost.from_plan import predicted_plan
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output
from paceline.rules.planning import make_plan

torchao = pytest.importorskip("torchao")
LLAMA = {**FAMILIES["llama"], "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Scaled by the largest value, to 8 bits and back, in fp64."""
    scale = torch.finfo(dtype).max / x.abs().max().double()
    return (x.double() * scale).to(dtype).double() / scale


def test_a_layer_multiplies_what_is_rounded_to_8_bits() -> None:
    """Against the formula in fp64: e4m3 for input and weight, e5m2 for the gradient; 37 tokens are padded."""
    torch.manual_seed(0)
    trunk = nn.ModuleDict(
        {"proj": nn.Linear(64, 32, bias=False), "odd": nn.Linear(64, 30), "gate": nn.Linear(64, 16)}
    )
    weight = trunk["proj"].weight
    assert quantized_linear.convert_to_fp8(trunk, emulate=True) == 1
    assert trunk["proj"].weight is weight
    assert type(trunk["odd"]) is type(trunk["gate"]) is nn.Linear
    x = torch.randn(37, 64).bfloat16().requires_grad_()
    grad = torch.randn(37, 32).bfloat16()
    out = trunk["proj"](x)
    out.backward(grad)
    low_x, low_weight = (rounded(t.detach(), torch.float8_e4m3fn) for t in (x, weight))
    low_grad = rounded(grad, torch.float8_e5m2)
    assert weight.grad is not None and x.grad is not None and weight.grad.dtype == torch.float32
    for found, exact in (
        (out, low_x @ low_weight.T),
        (x.grad, low_grad @ low_weight),
        (weight.grad, low_grad.T @ low_x),
    ):
        assert (
            float((found.detach().double() - exact.detach()).norm() / exact.detach().norm()) < 6e-3
        )  # bf16's rounding of the results


def built(monkeypatch: pytest.MonkeyPatch, **options: Any) -> RoleModule:
    monkeypatch.setattr(factory, "convert_to_fp8", partial(quantized_linear.convert_to_fp8, emulate=True))
    return HFModelFactory(Source(config=LLAMA), compute_dtype=torch.bfloat16, **options)()


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 90, (1, 24), generator=generator)
    bounds = torch.tensor([0, 10, 24], dtype=torch.int32)
    positions = torch.cat((torch.arange(10), torch.arange(14)))[None]
    return Batch(ids, ids, positions, bounds, 14, torch.arange(2), 2)


def loss(module: RoleModule) -> Tensor:
    return module(batch(), frozenset({Output.NLL}))[Output.NLL.value].sum()


def test_a_model_trains_near_bf16_and_says_what_it_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    low, plain = built(monkeypatch, fp8=True), built(monkeypatch)
    assert low.notes()["fp8"].startswith("14 linear layers") and "fp8" not in plain.notes()
    assert [n for n, _ in low.plain_named_parameters()] == [n for n, _ in plain.plain_named_parameters()]
    frozen = built(monkeypatch, fp8=True, frozen=True)
    assert "fp8" not in frozen.notes() and torch.equal(loss(frozen), loss(plain))
    curves = []
    for module in (low, plain):
        optimizer, losses = torch.optim.AdamW(module.parameters(), lr=3e-3), []
        for _ in range(8):
            optimizer.zero_grad()
            found = loss(module)
            found.backward()
            optimizer.step()
            module.refresh_compute_weights()
            losses.append(float(found.detach()))
        curves.append(losses)
        assert losses[-1] < 0.9 * losses[0]
    assert curves[0] != curves[1] and curves[0] == pytest.approx(curves[1], rel=0.02)


def plan_for(cards: str = "1xH100", world: int = 1, capability: float | None = 9.0, **sections: Any) -> Plan:
    training = {"fp8": True, "mixed_precision": "bf16", **sections.pop("training", {})}
    config = Config.model_validate(
        {
            "model": {"config": LLAMA, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 64},
            "training": training,
            **sections,
        }
    )
    packages = {"deepspeed": "0.19.8", "peft": "0.19", "bitsandbytes": "0.49"}
    hardware = replace(cluster_of(cards).hardware(), packages=packages, capability=capability)
    launcher = "torchrun" if world > 1 else "single"
    return make_plan(Job(config, hardware, world_size=world, launcher=launcher, run_dir="none"))


def test_the_plan_says_what_it_is_and_expects_it_to_be_faster() -> None:
    plan = plan_for(training={"distributed_strategy": "single"})
    assert plan.precision.fp8
    [decision] = [d for d in plan.decisions if d.subject == "training.fp8"]
    assert "torchao" in decision.reason and "without torch_compile" in decision.reason
    hardware = cluster_of("1xH100").hardware()
    without = replace(plan, precision=replace(plan.precision, fp8=False))
    found = [predicted_plan(p, hardware) for p in (plan, without)]
    assert found[0] is not None and found[0].work.low_precision == "fp8" and found[0].work.kernels == "norms"
    assert found[1] is not None and found[1].work.low_precision == ""


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"capability": 8.6}, "has 8.6"),
        ({"capability": None}, "this run is on"),
        ({"training": {"mixed_precision": "no"}}, "computes in float32"),
        ({"lora": {"r": 4}}, "LoRA"),
        ({"training": {"distributed_strategy": "zero2"}}, "under zero2"),
        ({"training": {"distributed_strategy": "pipeline", "parallelism": {"pp_size": 2}}}, "under pipeline"),
        ({"training": {"distributed_strategy": "fsdp", "parallelism": {"tp_size": 2}}}, "whole layers"),
    ],
)
def test_what_it_cannot_be_is_refused_by_name(sections: dict[str, Any], named: str) -> None:
    training = {"distributed_strategy": "fsdp", **sections.get("training", {})}
    with pytest.raises(ConfigError) as caught:
        plan_for("2xH100", 2, **{**sections, "training": training})
    assert named in " ".join(d.what for d in caught.value.diagnostics)
    assert {d.code for d in caught.value.diagnostics} == {"prec.fp8"}
