"""Meshes and engine options of every strategy: what is asked is granted, translated or said to be off;
what cannot be is refused by name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.plan.explain import explain
from paceline.plan.hardware.probe import Hardware
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.plan.strategy_options import NO_OPTIONS, Wrap
from paceline.rules.planning import make_plan

GIB = 1024**3
CPU = Hardware(
    "cpu",
    "A CPU",
    1,
    16 * GIB,
    16 * GIB,
    1,
    True,
    True,
    64,
    None,
    ("gloo",),
    products=("bfloat16", "float16"),
)
A100 = Hardware(
    "cuda", "NVIDIA A100", 8, 80 * GIB, 512 * GIB, 1, True, True, 64, None, ("nccl", "gloo"), capability=8.0
)
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
}


@pytest.fixture
def plan_of(tmp_path: Path) -> Any:
    def make(
        training: Mapping[str, Any], world: int = 4, nodes: int = 1, hardware: Hardware = CPU, **sections: Any
    ) -> Plan:
        whole = {
            "model": {"config": MODEL, "tokenizer": "o/t", **sections.pop("model", {})},
            "data": {"train": "rows.jsonl", "max_length": 64},
            "training": {"per_device_train_batch_size": 2, **training},
            **sections,
        }
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(whole))
        config = load_config(str(path)).config
        return make_plan(
            Job(config, hardware, world_size=world, num_nodes=nodes, launcher="spawn", run_dir="")
        )

    return make


def said(plan: Plan) -> dict[str, Any]:
    return {d.subject: d for d in plan.decisions}


def refused(plan_of: Any, training: Mapping[str, Any], *args: Any, **kw: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_of(training, *args, **kw)
    assert all(d.hint for d in caught.value.diagnostics)
    return [d.code for d in caught.value.diagnostics]


P = "parallelism"
MESHES: list[tuple[dict[str, Any], int, int, Mesh, str]] = [
    ({"fsdp": "full_shard"}, 8, 2, Mesh(dp_shard=8), "full_shard"),
    ({"fsdp": "shard_grad_op"}, 4, 1, Mesh(dp_shard=4), "shard_grad_op"),
    ({"fsdp": "no_shard"}, 4, 1, Mesh(dp_replicate=4), "no_shard"),
    ({"fsdp": "hybrid_shard"}, 8, 2, Mesh(dp_replicate=2, dp_shard=4), "hybrid_shard"),
    ({"fsdp": "hybrid_shard"}, 8, 1, Mesh(dp_shard=8), "hybrid_shard"),
    (
        {"fsdp": "hybrid_shard", P: {"dp_shard_size": 2}},
        8,
        1,
        Mesh(dp_replicate=4, dp_shard=2),
        "hybrid_shard",
    ),
    (
        {"fsdp": "hybrid_shard_zero2", P: {"dp_replicate_size": 2}},
        8,
        1,
        Mesh(dp_replicate=2, dp_shard=4),
        "hybrid_shard_zero2",
    ),
    (
        {"fsdp": "hybrid_shard", P: {"tp_size": 2}},
        8,
        2,
        Mesh(dp_replicate=2, dp_shard=2, tp=2),
        "hybrid_shard",
    ),
    (
        {P: {"dp_replicate_size": 2, "dp_shard_size": 2}},
        4,
        1,
        Mesh(dp_replicate=2, dp_shard=2),
        "hybrid_shard",
    ),
    ({P: {"tp_size": 2}}, 4, 1, Mesh(dp_shard=2, tp=2), "full_shard"),
    ({P: {"cp_size": 2, "tp_size": 2}}, 4, 1, Mesh(cp=2, tp=2), "full_shard"),
    ({"distributed_strategy": "fsdp", P: {"dp_replicate_size": 4}}, 4, 1, Mesh(dp_replicate=4), "no_shard"),
]


@pytest.mark.parametrize(
    ("training", "world", "nodes", "mesh", "sharding"), MESHES, ids=map(str, range(len(MESHES)))
)
def test_meshes_of_fsdp(
    plan_of: Any, training: dict[str, Any], world: int, nodes: int, mesh: Mesh, sharding: str
) -> None:
    plan = plan_of(training, world, nodes)
    assert (plan.strategy, plan.mesh, plan.engine.sharding) == ("fsdp", mesh, sharding)
    assert plan.engine.reshard_after_forward is (sharding in ("full_shard", "hybrid_shard"))
    assert plan.batch.global_batch == 2 * mesh.data_parallel_size and mesh.size == world


def test_fsdp_s_options_and_what_is_said_of_them(plan_of: Any) -> None:
    options = {
        "fsdp_version": 1,
        "backward_prefetch": "BACKWARD_POST",
        "forward_prefetch": True,
        "use_orig_params": False,
        "sync_module_states": True,
        "cpu_ram_efficient_loading": False,
        "state_dict_type": "FULL_STATE_DICT",
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    }
    plan = plan_of({"fsdp": "shard_grad_op offload auto_wrap", "fsdp_config": options})
    engine = plan.engine
    assert engine.cpu_offload and engine.forward_prefetch and engine.backward_prefetch == "backward_post"
    assert engine.wrap == Wrap("transformer", ("LlamaDecoderLayer",), 0)
    assert engine.meta_start is False and engine.loss_parallel is False
    told = said(plan)
    assert told["fsdp_version"].choice == "2" and "1 was requested" in told["fsdp_version"].reason
    assert not told["fsdp_config.use_orig_params"].granted and told["fsdp_config.sync_module_states"].granted
    assert not told["fsdp_config.state_dict_type"].granted and "saves nothing" in told["fsdp offload"].reason
    by_size = plan_of({"fsdp": "full_shard", "fsdp_config": {"min_num_params": 1000}}).engine
    assert by_size.wrap == Wrap("size", (), 1000)


def test_a_vocabulary_that_tp_does_not_divide_turns_the_parallel_loss_off_and_says_so(plan_of: Any) -> None:
    odd = {"config": {**MODEL, "vocab_size": 511}}
    plan = plan_of({P: {"tp_size": 2, "sequence_parallel": True}}, model=odd)
    assert plan.engine.loss_parallel is False and not said(plan)["training.parallelism.loss_parallel"].granted
    even = plan_of({P: {"tp_size": 2, "sequence_parallel": True}}).engine
    assert even.loss_parallel is True and even.sequence_parallel is True
    alone = plan_of({P: {"dp_shard_size": 4, "sequence_parallel": True}})
    assert alone.engine.sequence_parallel is False


def test_pipelines(plan_of: Any) -> None:
    plan = plan_of({P: {"pp_size": 2, "tp_size": 2}, "gradient_accumulation_steps": 4}, 8)
    assert plan.mesh == Mesh(pp=2, dp_shard=2, tp=2) and plan.batch.global_batch == 2 * 4 * 2
    assert (plan.engine.schedule, plan.engine.stages_per_rank) == ("1f1b", 1)
    assert plan.engine.fsdp.sharding == "shard_grad_op" and "20%" in said(plan)["pipeline"].reason
    for schedule in ("interleaved", "zero_bubble", "zbv"):
        assert plan_of({P: {"pp_size": 4, "pp_schedule": schedule}}).engine.stages_per_rank == 2
    start = said(plan)["fsdp start"]
    assert plan.engine.fsdp.meta_start and "tensors of its stages" in start.choice and start.granted
    whole = plan_of({P: {"pp_size": 2}, "fsdp_config": {"cpu_ram_efficient_loading": False}})
    assert not whole.engine.fsdp.meta_start and said(whole)["fsdp start"].choice == "all ranks read"
    copies = plan_of({P: {"pp_size": 2, "dp_replicate_size": 2}})
    assert copies.engine.fsdp.sharding == "no_shard" and copies.mesh == Mesh(pp=2, dp_replicate=2)


@pytest.mark.parametrize("asked", [None, True, False])
def test_a_packed_base_without_files_is_made_whole_by_every_rank(plan_of: Any, asked: bool | None) -> None:
    training = {"fsdp_config": {"cpu_ram_efficient_loading": asked}, "distributed_strategy": "fsdp"}
    drawn = said(plan_of(training, lora={"r": 4, "quantization_bit": 4}))["fsdp start"]
    assert (drawn.choice == "all ranks make the model", drawn.granted) == (asked is not False, not asked)


def test_data_parallel_takes_the_devices_of_its_one_process(plan_of: Any) -> None:
    assert plan_of({"distributed_strategy": "data_parallel"}, 1, hardware=A100).engine.to_json() == {
        "devices": 8
    }
    assert plan_of({"distributed_strategy": "data_parallel"}, 1).engine.to_json() == {"devices": 1}


REFUSED: list[tuple[dict[str, Any], int, int, str]] = [
    ({"fsdp": "full_shard", P: {"dp_replicate_size": 2, "dp_shard_size": 2}}, 4, 1, "par.sharding"),
    ({"fsdp": "no_shard", P: {"dp_shard_size": 4}}, 4, 1, "par.sharding"),
    (
        {"fsdp": "full_shard", "fsdp_config": {"state_dict_type": "LOCAL_STATE_DICT"}},
        4,
        1,
        "fsdp2.local_state",
    ),
    ({P: {"tp_size": 4}}, 4, 2, "par.tp_node"),
    ({P: {"tp_size": 8}}, 8, 1, "par.tp_kv_heads"),
    ({P: {"pp_size": 2, "cp_size": 2}}, 4, 1, "par.pp_cp"),
    ({P: {"pp_size": 2, "pp_stages_per_rank": 2}}, 2, 1, "par.pp_stages"),
    ({P: {"pp_size": 8, "pp_schedule": "interleaved"}}, 8, 1, "par.pp_layers"),
    ({"distributed_strategy": "pipeline"}, 4, 1, "par.pp_size"),
    ({"distributed_strategy": "zero1", P: {"pp_size": 2}}, 4, 1, "par.deepspeed"),
    ({"distributed_strategy": "zero1", P: {"dp_replicate_size": 2}}, 4, 1, "par.deepspeed"),
    ({"distributed_strategy": "zero1", P: {"tp_size": 2, "cp_size": 2}}, 4, 1, "par.deepspeed"),
    ({"distributed_strategy": "ddp", P: {"tp_size": 2}}, 4, 1, "par.strategy"),
    (
        {
            "deepspeed": {
                "zero_optimization": {
                    "stage": 2,
                    "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"},
                }
            }
        },
        2,
        1,
        "zero.nvme_stage",
    ),
    (
        {"deepspeed": {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}},
        2,
        1,
        "zero.quantised",
    ),
]


@pytest.mark.parametrize(("training", "world", "nodes", "code"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_what_cannot_be_is_refused_with_what_can(
    plan_of: Any, training: dict[str, Any], world: int, nodes: int, code: str
) -> None:
    assert code in refused(plan_of, training, world, nodes)


def test_adapters_are_refused_where_layers_or_rows_are_cut(plan_of: Any) -> None:
    for training in ({P: {"cp_size": 2}}, {P: {"pp_size": 2}}):
        assert "plan.adapter_strategy" in refused(plan_of, training, lora={"r": 4})
    assert "plan.quantised_strategy" in refused(
        plan_of, {"distributed_strategy": "zero3"}, lora={"quantization_bit": 4}
    )


def test_every_decision_stands_in_the_text(plan_of: Any) -> None:
    for training, world, nodes, _, _ in MESHES[:4]:
        plan = plan_of(training, world, nodes)
        assert all(d.subject in explain(plan) and d.reason for d in plan.decisions)
        assert Plan.from_json(json.loads(plan.dumps())) == plan
        assert plan.digest() != dataclasses.replace(plan, engine=NO_OPTIONS).digest()


@pytest.mark.parametrize(
    ("key", "value", "axis"),
    [
        ("pp_schedule", "gpipe", "pp"),
        ("pp_stages_per_rank", 2, "pp"),
        ("cp_method", "allgather", "cp"),
        ("sequence_parallel", True, "tp"),
        ("loss_parallel", False, "tp"),
    ],
)
def test_a_key_of_an_axis_of_one_rank_is_said_to_do_nothing(
    plan_of: Any, key: str, value: object, axis: str
) -> None:
    """Every key of ``training.parallelism`` but the sizes is one of these, so that a new one is judged."""
    from paceline.config.sections.training_scale import Parallelism

    assert {n for n in Parallelism.model_fields if not n.endswith("_size")} == {
        "pp_schedule",
        "pp_stages_per_rank",
        "cp_method",
        "sequence_parallel",
        "loss_parallel",
    }
    plan = plan_of({"distributed_strategy": "fsdp", "parallelism": {key: value}})
    [said] = [d for d in plan.decisions if d.subject == f"training.parallelism.{key}"]
    assert not said.granted and axis in said.reason
