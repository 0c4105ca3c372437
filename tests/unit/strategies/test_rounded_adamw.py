"""AdamW over bfloat16 weights alone: what is rounded is exact on average, and the same on every mesh."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.models.triton_kernels import reference
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.plan import OptimizerSpec, Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan
from paceline.strategies.optimizers.build import build_optimizer
from paceline.strategies.optimizers.stochastic_rounding_adamw import RoundedAdamW, noise_keys

NAME = "adamw_bf16_rounding"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}


def test_a_number_is_rounded_to_its_neighbours_and_to_itself_on_average() -> None:
    torch.manual_seed(0)
    exact = torch.cat((torch.randn(300), torch.randn(300) * 1e-12, torch.tensor([0.0, 1.0, -0.5, 1e30])))
    total, times = torch.zeros(len(exact), dtype=torch.float64), 2000
    nearest = exact.bfloat16()
    for step in range(times):
        made = reference.rounded(exact, noise_keys(3, 1, step), 0)
        bits = (made.view(torch.int16).int() - nearest.view(torch.int16).int()).abs()
        assert int(bits.max()) <= 1  # a neighbour, or the nearest itself
        total += made.double()
    unit = (nearest.float().abs() * 2**-7).double().clamp_min(1e-38)  # at least the distance of neighbours
    bias = (total / times - exact.double()).abs() / unit
    assert float(bias.max()) < 5 * 0.5 / times**0.5  # five standard deviations of a coin
    assert float((total / times - exact.double())[:300].mean()) < 1e-4
    assert torch.equal(reference.rounded(nearest.float(), noise_keys(0, 0, 0), 0), nearest)
    overflowing = reference.rounded(torch.tensor([torch.inf, -torch.inf, torch.nan]), [1, 2], 0)
    assert overflowing[:2].tolist() == [torch.inf, -torch.inf] and overflowing[2].isnan()


def test_noise_is_even_and_independent_of_place_and_step() -> None:
    keys = [noise_keys(1, 2, step) for step in (1, 2)]
    draws = [reference.rounding_noise(1 << 16, key, 0, torch.device("cpu")) for key in keys]
    for draw in draws:
        assert int(draw.min()) >= 0 and int(draw.max()) < 1 << 16
        counts = torch.bincount(draw >> 8, minlength=256).double()
        assert float(((counts - 256).square() / 256).sum()) < 256 + 5 * (2 * 256) ** 0.5  # chi squared
    a, b = (d.double() - d.double().mean() for d in draws)
    for one, two in ((a, b), (a[1:], a[:-1]), (a[4096:], a[:-4096])):
        assert abs(float((one * two).mean() / (one.std() * two.std()))) < 5 / len(one) ** 0.5
    assert len({tuple(noise_keys(*parts)) for parts in ((0, 0, 1), (0, 1, 0), (1, 0, 0))}) == 3


def parameters(rows: slice = slice(None)) -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"a.weight": (12, 7), "a.norm.weight": (7,)}
    made = {n: torch.randn(s, generator=generator).bfloat16() for n, s in shapes.items()}
    return [(n, nn.Parameter(v[rows].clone())) for n, v in made.items()]


def give(named: list[tuple[str, nn.Parameter]], step: int, rows: slice = slice(None)) -> None:
    generator = torch.Generator().manual_seed(step)
    for (_, p), shape in zip(named, ((12, 7), (7,)), strict=True):
        p.grad = torch.randn(shape, generator=generator).bfloat16()[rows].to(p.dtype)


def spec(seed: int = 5, rate: float = 1e-3) -> OptimizerSpec:
    return OptimizerSpec(name=NAME, learning_rate=rate, weight_decay=0.1, args={"seed": seed})


def test_on_average_its_steps_are_adamws() -> None:
    """Over seeds the mean of the weights approaches what fp32 weights become; the nearest would not move."""
    steps, seeds = 4, 400
    total = [torch.zeros(12, 7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)]
    for seed in range(seeds):
        named = parameters()
        optimizer = build_optimizer(spec(seed), named)
        for step in range(steps):
            give(named, step)
            optimizer.step()
        for sums, (_, p) in zip(total, named, strict=True):
            sums += p.detach().double()
    exact = [(n, nn.Parameter(p.detach().float())) for n, p in parameters()]
    adamw = build_optimizer(replace(spec(), name="adamw_torch", args={}), exact)
    for step in range(steps):
        give(exact, step)
        adamw.step()
    for sums, (_, p), (_, start) in zip(total, exact, parameters(), strict=True):
        noise = (p.detach().abs() * 2**-7).double() * (steps / seeds) ** 0.5
        assert bool(((sums / seeds - p.detach()).abs() < 5 * noise).all())
        moved = (p.detach() - start.detach()).double()
        share = ((sums / seeds - start.detach().double()) * moved).sum() / moved.square().sum()
        assert float(share) == pytest.approx(1.0, abs=0.1)


def test_shards_take_the_noise_of_the_whole() -> None:
    whole = parameters()
    one = build_optimizer(spec(), whole)
    for begin, end in ((0, 5), (5, 12)):
        rows = slice(begin, end)
        part = parameters(rows)
        other = build_optimizer(spec(), part)
        assert isinstance(other, RoundedAdamW)
        other.first = {part[0][1]: begin * 7, part[1][1]: begin}
        fresh = parameters()
        one = build_optimizer(spec(), fresh)
        for step in range(3):
            give(part, step, rows)
            other.step()
            give(fresh, step)
            one.step()
        for (_, a), (_, b) in zip(part, fresh, strict=True):
            assert torch.equal(a, b[rows])


def plan_for(cards: str = "1xH100", world: int = 1, **sections: Any) -> Plan:
    training = {"optim": NAME, "mixed_precision": "bf16", **sections.pop("training", {})}
    config = Config.model_validate(
        {
            "model": {"config": LLAMA, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 64},
            "training": training,
            **sections,
        }
    )
    hardware = replace(cluster_of(cards).hardware(), packages={"deepspeed": "0.19.8", "peft": "0.19"})
    launcher = "torchrun" if world > 1 else "single"
    return make_plan(Job(config, hardware, world_size=world, launcher=launcher, run_dir="none"))


def test_the_plan_counts_twelve_bytes_a_parameter() -> None:
    from paceline.models.factory import HFModelFactory

    plan = plan_for(training={"distributed_strategy": "single"})
    assert plan.precision.master == "bfloat16" and plan.memory is not None
    states = plan.memory.largest
    assert (
        states is not None
        and states.parameters == states.gradients
        and states.optimizer == 4 * states.parameters
    )
    root = HFModelFactory(plan.config.model, compute_dtype=torch.bfloat16, master_dtype=torch.bfloat16)()
    named = list(root.plain_named_parameters())
    optimizer = build_optimizer(plan.optimizer, named)
    for _, p in named:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert sum(p.nbytes for _, p in named) == states.parameters
    kept = [v for s in optimizer.state.values() for v in s.values()]
    assert sum(v.nbytes for v in kept if v.ndim) == states.optimizer
    assert sum(v.nbytes for v in kept if not v.ndim) == states.counters
    assert {b.dtype for _, b in root.named_buffers() if b.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_strategies_that_have_no_masters_of_their_own_are_planned(strategy: str) -> None:
    plan = plan_for("2xH100", 2, training={"distributed_strategy": strategy})
    assert plan.precision.master == "bfloat16"
    assert plan.precision.reduce == ("float32" if strategy == "fsdp" else "bfloat16")


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"training": {"mixed_precision": "no"}}, "computes in float32"),
        ({"training": {"mixed_precision": "fp16"}}, "computes in float16"),
        ({"lora": {"r": 4}}, "LoRA"),
        ({"training": {"distributed_strategy": "zero2"}}, "no fp32 masters"),
        ({"training": {"distributed_strategy": "zero_redundancy"}}, "no fp32 masters"),
        ({"training": {"distributed_strategy": "pipeline", "parallelism": {"pp_size": 2}}}, "pipeline"),
        ({"training": {"distributed_strategy": "fsdp", "parallelism": {"tp_size": 2}}}, "data-parallel"),
        ({"training": {"distributed_strategy": "fsdp", "parallelism": {"cp_size": 2}}}, "data-parallel"),
    ],
)
def test_what_it_cannot_be_combined_with_is_refused_by_name(sections: dict[str, Any], named: str) -> None:
    training = {"distributed_strategy": "fsdp", **sections.get("training", {})}
    with pytest.raises(ConfigError) as caught:
        plan_for("2xH100", 2, **{**sections, "training": training})
    said = " ".join(f"{d.what} {d.hint}" for d in caught.value.diagnostics)
    assert named in said and {d.code for d in caught.value.diagnostics} <= {
        "prec.bf16_weights",
        "strategy.optimizer_split",
    }
