"""make_plan: what is chosen, what is refused by name, and that everything asked is answered."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.config.load import load_config
from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.plan.explain import WIDTH, explain
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan

GIB = 1024**3
CPU = Hardware(
    "cpu",
    "Some CPU",
    1,
    16 * GIB,
    16 * GIB,
    1,
    True,
    True,
    2,
    None,
    ("gloo",),
    "no CUDA device is visible",
    ("bf16",),
)
A100 = Hardware(
    "cuda",
    "NVIDIA A100",
    4,
    80 * GIB,
    512 * GIB,
    1,
    True,
    True,
    64,
    {"bfloat16": 312e12},
    ("nccl", "gloo"),
    "4 CUDA devices",
    (),
    8.0,
)
T4 = dataclasses.replace(A100, device_name="Tesla T4", bf16=False, capability=7.5)
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def make(training: Mapping[str, Any] | None = None, **sections: Any) -> Config:
        whole = {
            "model": {"config": MODEL, "tokenizer": "org/tokenizer", **sections.pop("model", {})},
            "data": {"train": "rows.jsonl", "max_length": 128, **sections.pop("data", {})},
            "training": {"per_device_train_batch_size": 2, **(training or {})},
            **sections,
        }
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(whole))
        return load_config(str(path)).config

    return make


def plan_of(
    config: Config, hardware: Hardware = CPU, world_size: int = 2, shape: ModelShape | None = None, **kw: Any
) -> Plan:
    return make_plan(
        Job(config, hardware, world_size=world_size, launcher="spawn", run_dir="outputs/x", shape=shape, **kw)
    )


def codes(config: Config, hardware: Hardware = CPU, world_size: int = 2, **kw: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_of(config, hardware, world_size, **kw)
    return [d.code for d in caught.value.diagnostics]


def sized(billions: float) -> ModelShape:
    return dataclasses.replace(shape_from_config(MODEL), num_parameters=int(billions * 1e9))


def test_the_same_input_gives_the_same_plan_and_json_brings_it_back(config: Any) -> None:
    plan = plan_of(config())
    assert plan == plan_of(config()) and Plan.from_json(json.loads(plan.dumps())) == plan
    assert plan.config == config()


def test_the_digest_follows_what_decides_the_run_only(config: Any) -> None:
    plan = plan_of(config())
    moved = dataclasses.replace(plan, run_dir="elsewhere", launcher="torchrun")
    assert moved.digest() == plan.digest() != plan_of(config(), world_size=1).digest()
    assert plan_of(config({"learning_rate": 1e-4})).digest() != plan.digest()


def test_auto_on_a_cpu(config: Any) -> None:
    plan = plan_of(config())
    assert (plan.strategy, plan.backend, plan.precision.compute, plan.device) == (
        "ddp",
        "gloo",
        "float32",
        "cpu",
    )
    assert plan.batch.global_batch == 4 and plan.mesh.dp_replicate == 2 and plan.timeout_seconds == 1800


def test_auto_on_gpus(config: Any) -> None:
    plan = plan_of(config(), A100, 4)
    assert (plan.strategy, plan.backend, plan.precision.compute, plan.precision.scaler) == (
        "ddp",
        "nccl",
        "bfloat16",
        False,
    )
    older = plan_of(config(), T4, 4)
    assert (older.precision.compute, older.precision.scaler, older.precision.master) == (
        "float16",
        True,
        "float32",
    )


@pytest.mark.parametrize(
    ("billions", "found", "instead"),
    [
        (0.99, "ddp", None),
        (1.0, "zero2", "shard_grad_op"),
        (7.0, "zero2", "shard_grad_op"),
        (7.1, "zero3", "full_shard"),
    ],
)
def test_the_size_rule(config: Any, billions: float, found: str, instead: str | None) -> None:
    plan = plan_of(config(), A100, 4, sized(billions))
    assert plan.strategy == found and plan.engine.to_json().get("zero_stage") == (
        int(found[-1]) if instead else None
    )
    bare = plan_of(config(), dataclasses.replace(A100, packages=()), 4, sized(billions))
    assert (
        bare.strategy == ("fsdp" if instead else "ddp") and bare.engine.to_json().get("sharding") == instead
    )
    assert not instead or "DeepSpeed is not installed" in bare.strategy_reason
    assert plan_of(config(), A100, 1, sized(billions)).strategy == "single"


def test_what_needs_whole_models_is_refused_where_the_size_rule_shards(config: Any) -> None:
    whole = {"torch_compile": True, "optim": "adafactor"}
    assert plan_of(config(**whole), A100, 4, sized(0.5)).strategy == "ddp"
    with pytest.raises(ConfigError) as caught:
        plan_of(config(**whole), A100, 4, sized(8.0))
    assert [d.code for d in caught.value.diagnostics] == ["strategy.compile", "strategy.adafactor"]
    assert "auto → zero3" in str(caught.value)


def test_deepspeed_by_name_is_refused_where_it_is_not_installed(config: Any) -> None:
    with pytest.raises(ConfigError, match="fsdp: shard_grad_op") as caught:
        plan_of(config({"distributed_strategy": "zero2"}), dataclasses.replace(CPU, packages=("peft",)))
    assert [d.code for d in caught.value.diagnostics] == ["plan.deepspeed_missing"]


def test_an_unknown_size_is_said(config: Any) -> None:
    hub = config(model={"config": None, "tokenizer": None, "name_or_path": "org/model"})
    plan = plan_of(hub, A100, 4)
    assert plan.strategy == "ddp" and "unknown" in plan.strategy_reason and plan.shape is None
    assert "size is unknown" in explain(plan)


@pytest.mark.parametrize(
    ("training", "found"),
    [
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "deepspeed"),
        ({"fsdp": "full_shard"}, "fsdp"),
        ({"parallelism": {"dp_shard_size": 2}}, "fsdp"),
        ({"parallelism": {"tp_size": 2}}, "fsdp"),
        ({"parallelism": {"pp_size": 2}, "fsdp": "full_shard"}, "pipeline"),
        ({"parallelism": {"dp_replicate_size": 2}}, "ddp"),
    ],
)
def test_sections_of_an_engine_name_the_strategy(config: Any, training: dict[str, Any], found: str) -> None:
    assert plan_of(config(training)).strategy == found


def test_a_class_of_one_s_own_is_taken(config: Any) -> None:
    assert plan_of(config({"distributed_strategy": "my_parts:Mine"})).strategy == "my_parts:Mine"


def test_ddp_alone_is_single_and_says_so(config: Any) -> None:
    plan = plan_of(config({"distributed_strategy": "ddp"}), world_size=1)
    assert plan.strategy == "single" and "one process" in plan.strategy_reason


@pytest.mark.parametrize(
    ("training", "code"),
    [
        ({"ddp_backend": "nccl"}, "back.nccl_cpu"),
        ({"ddp_backend": "mpi"}, "back.not_built"),
        ({"distributed": False}, "back.one_process"),
        ({"distributed_strategy": "single"}, "back.one_process"),
    ],
)
def test_what_cannot_be_is_refused(config: Any, training: dict[str, Any], code: str) -> None:
    assert code in codes(config(training))


def test_precision_that_the_device_does_not_have_is_refused(config: Any) -> None:
    assert codes(config({"bf16": True}), T4) == ["prec.bf16_hw"]
    assert codes(config({"fp16": True}), dataclasses.replace(CPU, fp16=False)) == ["prec.fp16_hw"]
    assert plan_of(config({"fp16": True})).precision.scaler
    slow = plan_of(config({"bf16": True}))
    assert slow.precision.compute == "bfloat16" and "no instructions" in slow.precision.reason


def test_more_processes_than_devices_are_refused_on_gpus_only(config: Any) -> None:
    assert codes(config(), A100, 5) == ["plan.too_few_devices"]
    assert plan_of(config(), A100, 8, num_nodes=2).world_size == 8
    crowded = plan_of(config(), CPU, 4)
    assert any("4 processes share 2 cores" in d.reason for d in crowded.decisions)


def test_uneven_nodes_are_refused(config: Any) -> None:
    assert codes(config(), CPU, 3, num_nodes=2) == ["plan.world_nodes"]
    assert "plan.world_size" in codes(config(), CPU, 0)


def test_rows_longer_than_the_positions_are_refused(config: Any) -> None:
    short = {**MODEL, "max_position_embeddings": 64}
    assert codes(config(model={"config": short})) == ["data.max_pos"]
    stretched = {**short, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    assert plan_of(config(model={"config": stretched})).seq_len == 128


def test_an_adapter_is_in_the_plan(config: Any) -> None:
    plan = plan_of(config(lora={"r": 4}))
    assert plan.adapter is not None and plan.adapter.r == 4
    assert Plan.from_json(json.loads(plan.dumps())) == plan


def test_all_findings_come_at_once(config: Any) -> None:
    wrong = config(
        {
            "distributed_strategy": "zero2",
            "ddp_backend": "nccl",
            "parallelism": {"pp_size": 2},
        },
        data={"max_length": 99999},
    )
    assert set(codes(wrong)) == {
        "par.deepspeed",
        "back.nccl_cpu",
        "data.max_pos",
    }


def test_what_is_asked_and_not_granted_is_said(config: Any) -> None:
    plan = plan_of(config({"ddp_bucket_cap_mb": 50}, model={"low_cpu_mem": False}), world_size=1)
    off = {d.subject for d in plan.decisions if not d.granted}
    assert off == {"training.ddp_bucket_cap_mb", "model.low_cpu_mem"}
    assert all(d.reason for d in plan.decisions)


@pytest.mark.parametrize("word", ["bf16", "fp16"])
def test_full_eval_holds_where_training_computes_so_and_is_refused_elsewhere(config: Any, word: str) -> None:
    key = f"{word}_full_eval"
    plan = plan_of(config({key: True, "mixed_precision": word}))
    assert any(d.subject == f"training.{key}" and d.granted for d in plan.decisions)
    other = "bf16" if word == "fp16" else "fp16"
    for precision in ("no", "auto", other):
        with pytest.raises(ConfigError, match="prec.full_eval") as refused:
            plan_of(config({key: True, "mixed_precision": precision}))
        assert f"{key}: false" in refused.value.diagnostics[0].hint


def test_batches_are_loaded_ahead_by_threads_but_not_rollouts(config: Any) -> None:
    asked = {"dataloader_num_workers": 3, "dataloader_prefetch_factor": 4}
    said = {d.subject: d for d in plan_of(config(asked)).decisions}["training.dataloader_num_workers"]
    assert said.granted and said.choice == "3" and "12 steps" in said.reason
    rollout = {
        "algorithm": "grpo",
        "rollout": {"rewards": "ended", "max_completion_length": 32},
        "per_device_train_batch_size": 8,
    }
    said = {d.subject: d for d in plan_of(config({**asked, **rollout})).decisions}[
        "training.dataloader_num_workers"
    ]
    assert not said.granted and said.choice == "0"


def test_what_is_asked_and_granted_is_said_too(config: Any) -> None:
    asked = {
        "gradient_checkpointing": True,
        "torch_compile": True,
        "ddp_find_unused_parameters": True,
        "ddp_static_graph": True,
    }
    plan = plan_of(config(asked))
    said = {d.subject for d in plan.decisions if d.granted}
    assert {f"training.{name}" for name in asked} <= said and plan.recompute and plan.compile


def test_optimizer_arguments_as_transformers_writes_them(config: Any) -> None:
    plan = plan_of(config({"optim": "sgd", "optim_args": "momentum=0.9,nesterov=True", "adam_beta2": 0.95}))
    assert plan.optimizer.name == "sgd" and plan.optimizer.args == {"momentum": 0.9, "nesterov": True}
    assert plan.optimizer.betas == (0.9, 0.95)


def test_the_text_is_at_most_a_hundred_columns_and_tells_every_decision(config: Any) -> None:
    plan = plan_of(config({"dataloader_num_workers": 2}, model={"low_cpu_mem": False}))
    text = explain(plan)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(d.subject in text for d in plan.decisions) and text.count("not applied") == 1


@pytest.mark.parametrize(("algorithm", "tokens"), [("sft", 128), ("dpo", 256), ("reward", 256), ("kto", 128)])
def test_a_row_has_room_for_all_its_documents(config: Any, algorithm: str, tokens: int) -> None:
    """As data are packed: a pair is two documents of up to ``max_length`` tokens each."""
    for packing, said in ((True, f"rows of {tokens} tokens contain several"), (False, "up to 128 tokens")):
        plan = plan_of(config({"algorithm": algorithm}, data={"packing": packing}))
        text = explain(plan)
        [row] = [line for line in text.splitlines() if line.split()[:1] == ["row"]]
        assert f"{tokens} tokens{', packed' if packing else ''}" in row
        [about] = [d.reason for d in plan.decisions if d.subject == "data.packing"]
        assert said in about
        assert packing or ("2 documents per row" in about) is (tokens == 256)


def test_a_step_limit_below_the_predicted_step_is_warned_of(config: Any) -> None:
    """A step of 100,000 micro-batches takes more than a second on any machine."""
    long, key = {"gradient_accumulation_steps": 100_000}, "training.step_timeout"

    def warned(seconds: int | None, **kw: Any) -> list[str]:
        plan = plan_of(config({**long, "step_timeout": seconds}), **kw)
        return [d.reason for d in plan.decisions if d.choice == "warning plan.step_timeout"]

    [said] = warned(1)
    assert "longer than its time limit" in said and "set step_timeout: " in said
    assert warned(10**9) == warned(None) == warned(1, world_size=1) == []
    told = explain(plan_of(config({"start_timeout": 60, "step_timeout": 30})))
    words = " ".join(told.split())
    start = "1800 s (training.ddp_timeout), 60 s before the first step (training.start_timeout)"
    assert f"{start}, 30 s in a step ({key})" in words
