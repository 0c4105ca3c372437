"""GaLore's AdamW against its authors' package, and what the plan counts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import nn

from paceline.config.registries.optimizers import BUILT
from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.models.factory import HFModelFactory
from paceline.plan.cost.memory.model_states import OptimizerStates
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.plan import OptimizerSpec, Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan
from paceline.strategies.optimizers.build import build_optimizer
from paceline.strategies.optimizers.galore_adamw import GaLoreAdamW, basis
from paceline.strategies.replicated_state import moments, moments_from
from paceline.training.checkpointing import resume_compatibility

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
def test_steps_are_those_of_the_authors_package(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the same signs, which a decomposition leaves free: theirs are LAPACK's."""
    theirs, plain = pytest.importorskip("galore_torch").GaLoreAdamW, torch.linalg.svd

    def signed(matrix: torch.Tensor, full_matrices: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        left, values, right = plain(matrix, full_matrices=full_matrices)
        for number in range(len(values)):
            if left[left[:, number].abs().argmax(), number] < 0:
                left[:, number], right[number] = -left[:, number], -right[number]
        return left, values, right

    monkeypatch.setattr(torch.linalg, "svd", signed)
    ours = stepped(GaLoreAdamW, kind, {"projected": True})
    assert not torch.equal(ours[0], stepped(GaLoreAdamW, kind, {})[0])
    loose = 30 if kind == "full" else 1  # the order of two products, which small second moments magnify
    for a, b in zip(ours, stepped(theirs, kind, {}), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5 * loose, atol=1e-6 * loose)


@pytest.mark.parametrize("kind", ["std", "reverse_std", "right", "left", "full"])
def test_the_signs_of_a_basis_do_not_depend_on_how_it_is_computed(kind: str) -> None:
    """Rows in another order have the same vectors, in that order; LAPACK's signs are others."""
    torch.manual_seed(2)
    gradient = torch.randn(9, 6, dtype=torch.float64)
    expected = basis(gradient, 4, kind)
    for _ in range(8):
        order = torch.randperm(9)
        found = basis(gradient[order], 4, kind)
        for side, vectors in expected.items():
            wanted = vectors[order] if side == "left" else vectors
            torch.testing.assert_close(found[side], wanted, rtol=0, atol=1e-12)


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


@pytest.mark.parametrize(
    "args", ["rank=0", "rank=-3", "rank=2.5", "update_proj_gap=0", "scale=-1", "proj_type=other"]
)
def test_numbers_that_make_no_sense_are_refused(args: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_for(optim_args=args)
    assert {d.code for d in caught.value.diagnostics} == {"train.optim_args"}


def test_an_option_without_a_value_is_the_default() -> None:
    plan = plan_for(optim_args="rank=None,proj_type=None")
    optimizer = build_optimizer(plan.optimizer, [("layers.0.w", nn.Parameter(torch.ones(4, 4)))])
    assert optimizer.param_groups[0]["rank"] == 128 and optimizer.param_groups[0]["proj_type"] == "std"


@pytest.mark.parametrize(
    ("targets", "kept"), [(["all_linear"], ()), (["all-linear", "q_proj"], ()), (["q_proj"], ("q_proj",))]
)
def test_every_spelling_of_all_layers(targets: list[str], kept: tuple[str, ...]) -> None:
    assert plan_for(optim_target_modules=targets).optimizer.target_modules == kept


def test_modules_that_the_model_lacks_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_for(optim_target_modules=["nonsense"])
    assert {d.code for d in caught.value.diagnostics} == {"plan.optim_target_modules"}


def test_modules_of_a_model_of_unknown_sizes_are_named_at_the_start() -> None:
    spec = OptimizerSpec("galore_adamw", target_modules=("nonsense",))
    with pytest.raises(ConfigError) as caught:
        build_optimizer(spec, [("layers.0.w", nn.Parameter(torch.ones(4, 4)))])
    assert caught.value.diagnostics[0].where == "training.optim_target_modules"


def test_the_whole_jobs_states_know_the_modules() -> None:
    """The check of the disk counts AdamW's moments where the modules are few."""
    shape = plan_for().shape
    assert shape is not None
    few, every = (
        OptimizerStates.configured(
            config_for(optim_args="rank=2", optim_target_modules=words).training, shape, None
        )
        for words in (["q_proj"], [])
    )
    assert few.moments > every.moments


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        ({"rank": 8}, {"rank": 8}, False),
        ({}, {"rank": 128}, False),
        ({"rank": 8}, {"rank": 8, "scale": 1.0}, False),
        ({"rank": 8}, {"rank": 4}, True),
        ({"rank": 200}, {"rank": 300}, True),
        ({"rank": 8}, {"rank": 8, "proj_type": "left"}, True),
    ],
)
def test_a_resume_with_other_bases_is_refused(
    before: dict[str, Json], now: dict[str, Json], refused: bool
) -> None:
    saved: JsonObject = {"name": "galore_adamw", "args": before, "target_modules": []}
    assert (
        bool(resume_compatibility.compare_optimizer(saved, OptimizerSpec("galore_adamw", args=now)))
        is refused
    )
    other = OptimizerSpec("galore_adamw", args=before, target_modules=("mlp",))
    assert resume_compatibility.compare_optimizer(saved, other)


EVERY = [
    name
    for name, known in BUILT.items()
    if not (known.quantised or known.averaged or "cuda" in known.devices[:1])
]


@pytest.mark.parametrize("name", EVERY)
def test_moments_come_back_in_the_dtype_that_the_optimizer_keeps(name: str) -> None:
    """A run with fp32 masters goes on in bfloat16 alone, and back: torch's AdamW refuses mixed dtypes."""
    if BUILT[name].package:
        pytest.importorskip(BUILT[name].package)
    args: JsonObject = {"momentum": 0.9} if name == "sgd" else {"rank": 2} if name == "galore_adamw" else {}
    spec = OptimizerSpec(name, args=args)
    for dtype, other in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        made = [nn.Parameter(torch.ones(4, 6, dtype=kind)) for kind in (dtype, other)]
        optimizers = [build_optimizer(spec, [("layers.0.w", parameter)]) for parameter in made]
        for optimizer, parameter in zip(optimizers, made, strict=True):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        kept = {k: v.dtype for k, v in optimizers[1].state[made[1]].items() if isinstance(v, torch.Tensor)}
        optimizers[1].state[made[1]] = moments_from(
            optimizers[1], made[1], moments(optimizers[0].state[made[0]])
        )
        read = {k: v.dtype for k, v in optimizers[1].state[made[1]].items() if isinstance(v, torch.Tensor)}
        assert read == kept
        optimizers[1].step()
