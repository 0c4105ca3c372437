"""``training.pure_bf16``: weights and moments in bfloat16 alone, in plan, forecast and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.plan.cost.advice import advice
from paceline.plan.cost.from_plan import cluster_of_hardware, planned_candidate, search_spec_of
from paceline.plan.cost.memory.model_states import checkpoint_bytes
from paceline.plan.cost.report import outlook
from paceline.plan.cost.search import SearchSpec, search
from paceline.plan.features.precision import choose_precision
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job, strategy_spec
from paceline.rules.planning import make_plan
from paceline.strategies.optimizers.build import build_optimizer

LLAMA = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


def plan_for(cards: str = "1xH100", world: int = 1, **sections: Any) -> Plan:
    training = {"pure_bf16": True, "distributed_strategy": "single", **sections.pop("training", {})}
    model = {"config": LLAMA, "tokenizer": "none"}
    values = {"model": model, "data": {"train": "none.jsonl", "max_length": 64}, "training": training}
    config = Config.model_validate(values | sections)
    hardware = replace(cluster_of(cards).hardware(), packages=("deepspeed", "peft"))
    launcher = "torchrun" if world > 1 else "single"
    return make_plan(Job(config, hardware, world_size=world, launcher=launcher, run_dir="none"))


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adafactor", "muon", "rmsprop", "sgd"])
def test_the_plan_counts_what_the_optimizer_makes(optim: str) -> None:
    plan = plan_for(training={"optim": optim})
    states = plan.memory.largest if plan.memory else None
    assert states is not None and plan.precision.master == plan.precision.compute == "bfloat16"
    root = HFModelFactory(plan.config.model, compute_dtype=torch.bfloat16, master_dtype=torch.bfloat16)()
    named = list(root.plain_named_parameters())
    optimizer = build_optimizer(plan.optimizer, named)
    for _, parameter in named:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert states.parameters == states.gradients == sum(p.nbytes for _, p in named)
    kept = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    assert states.optimizer == sum(v.nbytes for v in kept if v.ndim)


def test_a_checkpoint_and_the_candidates_are_counted_alike() -> None:
    """7 B parameters: 8 bytes each on a card of 80 GB, and 6 in a checkpoint; no candidate with masters."""
    wide = {**LLAMA, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    wide |= {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000}
    plan = plan_for(model={"config": wide, "tokenizer": "none"}, training={"gradient_checkpointing": True})
    assert plan.shape is not None and plan.memory is not None and plan.memory.largest is not None
    states = plan.memory.largest
    count = plan.shape.num_parameters
    assert states.parameters + states.gradients + states.optimizer == 8 * count
    cluster = cluster_of_hardware(cluster_of("8xH100").hardware(), 1)
    assert cluster is not None
    spec = search_spec_of(plan, cluster)
    assert spec is not None
    own = planned_candidate(plan, spec)
    assert own is not None and own.fits
    assert checkpoint_bytes(plan) == pytest.approx(6 * count, rel=1e-6)
    assert outlook(own, spec).checkpoint_bytes == 6 * count
    found = search(replace(spec, rows=8))
    assert {c.strategy for c in found} == {"ddp", "fsdp", "fsdp + cpu"}
    assert all(strategy_spec(c.layout.strategy).bf16_masters for c in found)
    replicated = next(c for c in found if c.strategy == "ddp")
    assert sum(
        replicated.peak.to_json()[k] for k in ("parameters", "gradients", "optimizer")
    ) == pytest.approx(8 * count, rel=1e-6)


@pytest.mark.parametrize(
    ("optim", "moments"),
    [("adamw_torch_fused", 8.0), ("adamw_bnb_8bit", 2.03), ("sgd", 0.0), ("lion_32bit", 4.0)],
)
def test_candidates_have_the_moments_of_the_optimizer(optim: str, moments: float) -> None:
    plan = plan_for(training={"optim": optim, "pure_bf16": False})
    cluster = cluster_of_hardware(cluster_of("8xH100").hardware(), 1)
    assert cluster is not None and plan.shape is not None
    spec = search_spec_of(plan, cluster)
    assert spec is not None
    assert spec.states.moments == pytest.approx(moments, abs=0.3)  # small tensors stay in fp32
    found = search(replace(spec, rows=8))
    replicated = next(c for c in found if c.strategy == "ddp")
    count = plan.shape.num_parameters
    assert replicated.peak.to_json()["optimizer"] == pytest.approx(spec.states.moments * count)
    strategies = {c.strategy for c in found}
    assert ("zero1" in strategies) == (optim != "adamw_bnb_8bit")  # flat partitions split its blocks


def test_it_is_proposed_where_it_would_fit() -> None:
    """Not for 13 B on one card of 80 GB, nor where LoRA trains."""
    seven: dict[str, Any] = {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
    }
    seven |= {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000}
    thirteen = {**seven, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40}
    thirteen |= {"num_attention_heads": 40, "num_key_value_heads": 40}
    for config, proposed in ((seven, True), (thirteen, False)):
        with pytest.raises(ConfigError) as caught:
            plan_for(model={"config": config, "tokenizer": "none"}, training={"pure_bf16": False})
        assert ("training.pure_bf16: true" in caught.value.diagnostics[0].hint) is proposed
        shape = shape_from_config(config)
        cluster = cluster_of("1xH100")
        lines = " ".join(advice(spec := SearchSpec(shape, cluster, 2048, 8), search(spec), None))
        assert ("or training.pure_bf16: true" in lines) is proposed


def test_auto_computes_in_the_dtype_of_the_weights() -> None:
    cpu = replace(cluster_of("1xH100").hardware(), device="cpu")
    assert choose_precision("auto", cpu).compute == "float32"
    assert choose_precision("auto", cpu, bf16_weights=True).compute == "bfloat16"
    old = replace(cluster_of("1xH100").hardware(), bf16=False, fp16=True)
    assert choose_precision("auto", old, bf16_weights=True).compute == "float16", "which is refused"


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"training": {"mixed_precision": "no"}}, "computes in float32"),
        ({"training": {"mixed_precision": "fp16"}}, "computes in float16"),
        ({"lora": {"r": 4}}, "LoRA"),
        ({"training": {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant"}}, "averages"),
        ({"training": {"distributed_strategy": "zero2"}}, "no float32 masters"),
        ({"training": {"distributed_strategy": "zero_redundancy"}}, "no float32 masters"),
        (
            {"training": {"distributed_strategy": "pipeline", "parallelism": {"pp_size": 2}}},
            "float32 masters",
        ),
        ({"training": {"distributed_strategy": "fsdp", "parallelism": {"tp_size": 2}}}, "data-parallel"),
    ],
)
def test_what_it_cannot_be_combined_with_is_refused_by_name(sections: dict[str, Any], named: str) -> None:
    training = {"distributed_strategy": "fsdp", **sections.get("training", {})}
    with pytest.raises(ConfigError) as caught:
        plan_for("2xH100", 2, **{**sections, "training": training})
    said = " ".join(f"{d.what} {d.hint}" for d in caught.value.diagnostics)
    assert named in said and {d.code for d in caught.value.diagnostics} == {"prec.bf16_weights"}
