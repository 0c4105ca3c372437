"""Model states of whole copies against real models of every family; the arithmetic of shards against
numbers made by hand.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.config.load import load_config
from paceline.models import compute_dtype
from paceline.models.factory import HFModelFactory
from paceline.plan.algorithms.spec import named_shapes
from paceline.plan.cost.from_plan import cluster_of_cpu, planned_candidate, search_spec_of
from paceline.plan.cost.memory.model_states import memory_of, model_states
from paceline.plan.explain import WIDTH, explain
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.parameter_list import parameters_of
from paceline.plan.model.read_config import scoring, shape_from_config
from paceline.plan.plan import ModelStates, OptimizerSpec, Plan
from paceline.plan.strategies.spec import Job
from paceline.plan.workload.local_tensors import moment_bytes, sum_of
from paceline.protocols.roles import Role
from paceline.rules.planning import make_plan
from paceline.strategies.model_handle import storage_bytes

GIB = 1024**3
CPU = Hardware(
    "cpu", "A CPU", 1, 64 * GIB, 64 * GIB, 1, True, True, 2, None, ("gloo",), products=("bfloat16",)
)
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}


@pytest.fixture
def plan_of(tmp_path: Path) -> Any:
    def make(
        training: Mapping[str, Any], world_size: int, model: Mapping[str, Any] | None = None, **sections: Any
    ) -> Plan:
        config = (
            dict(model)
            if model and "model_type" in model
            else {"model_type": "llama", **SIZES, **(model or {})}
        )
        whole = {
            "model": {"config": config, "tokenizer": "o/t"},
            "data": {"train": "rows.jsonl", "max_length": 64},
        }
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**whole, "training": dict(training), **sections}))
        loaded = load_config(str(path)).config
        others = named_shapes(loaded)
        return make_plan(Job(loaded, CPU, world_size=world_size, launcher="spawn", run_dir="", others=others))

    return make


OTHER_NAMES = ("phi", "gpt2", "gpt_neox")  # their norms and layers are named otherwise


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3_text",
        "phi",
        "phi3",
        "gpt2",
        "gpt_neox",
    ],
)
def test_weights_and_their_copies_are_those_of_the_built_model(
    family: str, plan_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as a CPU with the instructions
    monkeypatch.setattr(compute_dtype, "product_dtype", lambda dtype, device: dtype)
    sizes = {"model_type": family, "pad_token_id": 0, **(GPT2 if family == "gpt2" else SIZES)}
    whole = {"lora": {"r": 3, "modules_to_save": ["lm_head", "norm", "layers.1"]}}
    for sections in ({}, {"lora": {"r": 3}}, *([] if family in OTHER_NAMES else [whole])):
        plan = plan_of({"bf16": True, "distributed_strategy": "single"}, 1, sizes, **sections)
        source = load_config(str(tmp_path / "config.json")).config.model
        root = HFModelFactory(source, seed=5, compute_dtype=torch.bfloat16, adapter=plan.adapter)()
        held = list(root.parameters())
        planned = model_states(plan, 0)
        assert planned is not None
        assert planned.parameters == storage_bytes([*held, *map(compute_dtype.compute_copy, held)]), sections
        assert planned.gradients == sum(p.numel() * p.element_size() for p in held if p.requires_grad)


def test_shards_are_padded_rows_and_moments_are_not(plan_of: Any) -> None:
    plan = plan_of({"fsdp": "full_shard"}, 3, {"num_hidden_layers": 1, "num_attention_heads": 4})
    first, last = (model_states(plan, rank) for rank in (0, 2))
    assert first is not None and last is not None and plan.memory is not None
    rows = {100: 34, 64: 22, 32: 11, 96: 32}  # a third of each dim 0, rounded up
    matrices = [(100, 64)] * 2 + [(64, 64)] * 2 + [(32, 64)] * 2 + [(96, 64)] * 2 + [(64, 96)]
    padded = sum(rows[a] * b for a, b in matrices) + 3 * 22
    assert first.parameters == last.parameters == first.gradients == 4 * padded
    assert first.optimizer == 8 * padded
    short = {100: 32, 64: 20, 32: 10, 96: 32}
    assert last.optimizer == 8 * (sum(short[a] * b for a, b in matrices) + 3 * 20)
    assert plan.memory.largest == first and plan.memory.smallest == last


def test_zero_shares_out_flat_groups_with_their_alignment(plan_of: Any) -> None:
    shape = shape_from_config({"model_type": "llama", **SIZES})
    norms = 5 * 64
    matrices = shape.num_parameters - norms
    ranks = 3
    flat = -(-matrices // (2 * ranks)) * 2 * ranks + -(-norms // (2 * ranks)) * 2 * ranks
    two = model_states(plan_of({"distributed_strategy": "zero2", "bf16": True}, ranks), 1)
    assert two is not None
    assert (two.parameters, two.gradients, two.optimizer) == (
        2 * flat + 4 * flat // 3,
        4 * flat // 3,
        8 * flat // 3,
    )
    one = model_states(plan_of({"distributed_strategy": "zero1", "bf16": True}, ranks), 1)
    assert one is not None and one.gradients == 4 * flat + 2 * shape.num_parameters
    zero = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    three = model_states(plan_of({"deepspeed": zero, "bf16": True}, ranks), 1)
    parts = sum(-(-p.numel // ranks) for p in parameters_of(shape))
    assert three is not None
    assert (three.parameters, three.gradients, three.optimizer) == (
        2 * parts + 4 * parts,
        4 * parts,
        8 * parts,
    )
    kept = model_states(plan_of({"distributed_strategy": "zero3", "bf16": True}, ranks), 1)
    # small ones whole as well
    assert kept is not None and kept.parameters == (2 + 4) * parts + 2 * parts * ranks


def test_a_large_world_is_counted_by_its_corners_and_an_unknown_size_is_said(plan_of: Any) -> None:
    plan = plan_of({"fsdp": "full_shard"}, 128)
    assert plan.memory is not None and plan.memory.largest.parameters >= plan.memory.smallest.parameters
    unknown = dataclasses.replace(plan, shape=None)
    assert memory_of(unknown, CPU).largest is None
    assert "size is unknown" in explain(dataclasses.replace(unknown, memory=memory_of(unknown, CPU)))


def test_the_table_stands_in_the_plan_s_text_and_in_its_json(plan_of: Any) -> None:
    plan = plan_of({"distributed_strategy": "ddp"}, 2)
    text = explain(plan)
    assert plan.memory is not None
    for part in ("parameters", "gradients"):
        assert f"{getattr(plan.memory.largest, part):,} bytes" in text
    assert max(map(len, text.splitlines())) <= WIDTH and Plan.from_json(json.loads(plan.dumps())) == plan


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [
        ({"name": "adamw_torch"}, 48),
        ({"name": "adamw_torch_fused", "args": {"amsgrad": True}}, 72),
        ({"name": "sgd"}, 0),
        ({"name": "sgd", "args": {"momentum": 0.9}}, 24),
        ({"name": "rmsprop", "args": {"centered": True}}, 48),
        ({"name": "adagrad"}, 24),
        ({"name": "adafactor"}, 10),
        ({"name": "lion_32bit"}, 24),
        ({"name": "rmsprop_bnb_32bit"}, 24),
    ],
)
def test_moments_are_those_that_the_optimizers_make(optimizer: dict[str, Any], found: int) -> None:
    from paceline.strategies.optimizers.build import build_optimizer

    assert moment_bytes((4, 6), OptimizerSpec(**optimizer), 4) == 4 * found
    parameter = torch.nn.Parameter(torch.ones(4, 6))
    built = build_optimizer(
        OptimizerSpec(name=optimizer["name"], args=optimizer.get("args", {})), [("layer.weight", parameter)]
    )
    parameter.grad = torch.ones(4, 6)
    built.step()
    made = [v for v in built.state[parameter].values() if isinstance(v, torch.Tensor) and v.ndim]
    assert sum(v.numel() for v in made) == found


def test_a_live_reference_is_a_second_model_and_a_cached_one_none(plan_of: Any) -> None:
    """Whole on every rank under DDP, shared out by FSDP and ZeRO-3; low-precision copies take the place of
    its masters.
    """
    asked = {"algorithm": "dpo", "bf16": True}
    for strategy, world in (("single", 1), ("ddp", 2), ("zero3", 2), ("fsdp", 2)):
        live, cached = (
            plan_of(
                {**asked, "distributed_strategy": strategy, "dpo": {"precompute_ref_log_probs": ahead}}, world
            )
            for ahead in (False, True)
        )
        assert (live.reference, cached.reference) == ("live", "cached")
        beside, alone = model_states(live, 0), model_states(cached, 0)
        assert beside is not None and alone is not None
        listed = parameters_of(live.shape)
        whole = sum(p.numel * (2 if len(p.shape) == 2 else 4) for p in listed)
        sharded = sum(4 * -(-p.shape[0] // 2) * (p.numel // p.shape[0]) for p in listed)
        # ZeRO-3: half of each in bf16, and small ones whole as well
        kept = sum(2 * 3 * -(-p.numel // 2) for p in listed)
        expected = {"fsdp": sharded, "zero3": kept}.get(strategy, whole)
        assert beside.parameters - alone.parameters == expected, strategy
        assert beside.total - beside.parameters == alone.total - alone.parameters
    assert plan_of({**asked, "distributed_strategy": "single"}, 1, lora={"r": 3}).reference == "adapter"
    assert plan_of({**asked, "dpo": {"reference_free": True}}, 1).reference == ""
    started = plan_of(asked, 1, lora={"r": 3, "modules_to_save": ["embed_tokens"]})
    assert started.reference == "live" and any(d.subject == "reference" for d in started.decisions)
    other = plan_of({**asked, "dpo": {"ref_model": "somebody/else"}}, 1)
    assert other.reference == "live" and model_states(other, 0) is None


def test_the_four_models_of_ppo_are_counted_each(plan_of: Any, tmp_path: Path) -> None:
    """The value model as a second trained one, reference and reward model as frozen ones; under FSDP all
    of them in pieces.
    """
    judge = tmp_path / "judge"
    judge.mkdir()
    larger = {
        "model_type": "llama",
        **SIZES,
        "intermediate_size": 128,
        "architectures": ["LlamaForSequenceClassification"],
    }
    (judge / "config.json").write_text(json.dumps(larger))
    rewards = [{"name": "model", "options": {"model": str(judge)}}]
    asked = {"algorithm": "ppo", "rollout": {"rewards": rewards, "max_completion_length": 8}, "ppo": {}}
    shape = shape_from_config({"model_type": "llama", **SIZES})
    own = [p.numel for p in parameters_of(shape)]
    judged = [p.numel for p in parameters_of(scoring(shape_from_config(larger)))]
    for strategy, world in (("single", 1), ("ddp", 2), ("zero1", 2), ("fsdp", 2)):
        plan = plan_of({**asked, "distributed_strategy": strategy}, world)
        assert {role: m.trained for role, m in plan.models.items()} == {
            "reference": False,
            "value": True,
            "reward": False,
        }
        assert plan.memory is not None
        roles = plan.memory.roles
        assert plan.memory.largest == sum_of(list(roles.values()))
        shared = 2 if strategy == "fsdp" else 1
        assert roles["reference"] == ModelStates(4 * sum(own) // shared, 0, 0)
        assert roles["reward"].parameters == pytest.approx(4 * sum(judged) / shared, abs=4 * 64)
        assert roles["value"].optimizer == pytest.approx(
            8 * sum(judged) / (1 if strategy in ("single", "ddp") else 2), abs=8 * 64
        )
        assert Plan.from_json(json.loads(plan.dumps())) == plan
        ask = search_spec_of(plan, cluster_of_cpu(CPU, world))
        candidate = planned_candidate(plan, ask) if ask else None
        assert candidate is not None  # what is foretold of a rank's memory counts each model once
        peak = candidate.peak
        assert peak.parameters + peak.gradients + peak.optimizer + peak.others == plan.memory.largest.total
    told = explain(plan)
    for role, kind in (
        ("policy", "trained"),
        ("reference", "frozen"),
        ("value", "trained"),
        ("reward", "frozen"),
    ):
        assert f"of them the {role}, {kind}" in told
    assert "data.packing                     off: rows are built from rollouts" in told
    adapted = plan_of({**asked, "distributed_strategy": "single"}, 1, lora={"r": 3})
    assert (
        set(adapted.models) == {"value", "reward"}
        and adapted.reference == "adapter"
        and adapted.memory is not None
    )
    value = HFModelFactory(
        load_config(None, flags={"model.name_or_path": str(judge)}).config.model.model_copy(
            update={"config": larger, "name_or_path": None}
        ),
        role=Role.VALUE,
        adapter=adapted.adapter,
    )()
    assert adapted.memory.roles["value"].gradients == sum(
        4 * p.numel() for p in value.parameters() if p.requires_grad
    )
    unknown = plan_of({**asked, "ppo": {"ref_model": "somebody/else"}}, 1)
    assert unknown.memory is not None and unknown.memory.roles["reference"] is None
    assert model_states(unknown, 0) is None and "of them the reference, frozen" in explain(unknown)


def test_a_reward_model_s_head_is_trained_beside_its_adapters(plan_of: Any) -> None:
    plan = plan_of({"algorithm": "reward", "distributed_strategy": "single"}, 1, lora={"r": 3})
    states = model_states(plan, 0)
    assert plan.shape is not None and plan.shape.scalar_head and states is not None
    source = HFModelFactory(
        load_config(None, flags={"model.config": json.dumps(plan.config.model.config)}).config.model,
        role=Role.REWARD,
        adapter=plan.adapter,
    )()
    trained = [p for p in source.parameters() if p.requires_grad]
    assert states.gradients == sum(p.numel() * 4 for p in trained)
    assert states.parameters == storage_bytes(source.parameters())
