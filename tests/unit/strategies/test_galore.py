"""GaLore's AdamW against its authors' package, and what the plan counts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import nn

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.plan.hardware.catalogue import cluster_of
from paceline.plan.plan import Plan
from paceline.plan.strategies.job import Job
from paceline.rules.planning import make_plan
from paceline.strategies.galore import GaLoreAdamW, basis
from paceline.strategies.optimizer import build_optimizer

SHAPES = ((12, 7), (6, 9), (8, 8), (5,))
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}


def stepped(
    cls: type[torch.optim.Optimizer], kind: str, own: Mapping[str, object], steps: int = 7
) -> list[nn.Parameter]:
    """The parameters after steps along random gradients; bases change every third step."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    options = {"rank": 3, "update_proj_gap": 3, "scale": 0.5, "proj_type": kind}
    groups = [{"params": parameters[:3], **options, **own}, {"params": parameters[3:]}]
    optimizer = cls(groups, lr=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)  # type: ignore[call-arg, arg-type]
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return parameters


@pytest.mark.filterwarnings("ignore:This implementation of AdamW is deprecated")
@pytest.mark.parametrize("kind", ["std", "reverse_std", "right", "left", "full"])
def test_steps_are_those_of_the_authors_package(kind: str) -> None:
    theirs = pytest.importorskip("galore_torch").GaLoreAdamW
    ours = stepped(GaLoreAdamW, kind, {"projected": True})
    assert not torch.equal(ours[0], stepped(GaLoreAdamW, kind, {})[0])
    loose = 30 if kind == "full" else 1  # the order of two products, which small second moments magnify
    for a, b in zip(ours, stepped(theirs, kind, {}), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5 * loose, atol=1e-6 * loose)


def test_a_basis_keeps_most_of_the_gradient() -> None:
    """The leading singular vectors: no other basis of that rank is nearer (Eckart and Young 1936)."""
    torch.manual_seed(1)
    gradient = torch.randn(20, 12, dtype=torch.float64)
    right = basis(gradient, 4, "std")["right"]
    kept = gradient @ right.T @ right
    singular = torch.linalg.svdvals(gradient)
    assert torch.linalg.norm(gradient - kept) == pytest.approx(float(singular[4:].square().sum().sqrt()))
    assert basis(gradient, 4, "std")["right"].shape == (4, 12)
    assert basis(gradient.T, 4, "std")["left"].shape == (12, 4)
    low = basis(gradient.bfloat16(), 4, "full")
    assert {t.dtype for t in low.values()} == {torch.bfloat16} and set(low) == {"left", "right"}


def config_for(**training: object) -> Config:
    return Config.model_validate(
        {
            "model": {"config": LLAMA, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 64},
            "training": {"optim": "galore_adamw", "distributed_strategy": "single", **training},
        }
    )


def plan_for(cards: str = "1xH100", world: int = 1, **training: object) -> Plan:
    hardware = replace(cluster_of(cards).hardware(), packages=("deepspeed", "peft"))
    launcher = "torchrun" if world > 1 else "single"
    return make_plan(
        Job(config_for(**training), hardware, world_size=world, launcher=launcher, run_dir="none")
    )


@pytest.mark.parametrize("kind", ["std", "reverse_std", "right", "left", "full"])
@pytest.mark.parametrize("targets", [(), ("all-linear",), ("mlp",), (r".*\.1\.self_attn\..*",)])
def test_the_plan_counts_what_the_optimizer_keeps(kind: str, targets: tuple[str, ...]) -> None:
    args = f"rank=5,proj_type={kind}"
    plan = plan_for(optim_args=args, optim_target_modules=list(targets))
    states = plan.memory.largest if plan.memory else None
    assert states is not None
    root = HFModelFactory(plan.config.model)()
    named = list(root.plain_named_parameters())
    optimizer = build_optimizer(plan.optimizer, named)
    for _, parameter in named:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    assert states.optimizer == sum(v.nbytes for v in kept)
    by_name = {id(p): name for name, p in named}
    projected = {by_name[id(p)] for p, state in optimizer.state.items() if {"left", "right"} & set(state)}
    words = {"mlp": 6, r".*\.1\.self_attn\..*": 4}
    assert len(projected) == (words[targets[0]] if targets and targets[0] in words else 14)


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_shards_are_refused(strategy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_for("2xH100", 2, distributed_strategy=strategy)
    assert "GaLore projects complete" in " ".join(d.what for d in caught.value.diagnostics)


def test_target_modules_of_another_optimizer_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_for(optim="adamw_torch", optim_target_modules=["mlp"])
    assert {d.code for d in caught.value.diagnostics} == {"train.optim_target_modules"}
