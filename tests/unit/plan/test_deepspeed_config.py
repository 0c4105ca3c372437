"""The JSON for deepspeed.initialize: complete, without "auto", every value owned by one place, and every
change said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.plan.hardware.probe import Hardware
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job, strategy_spec
from paceline.rules.planning import make_plan

ROOT = Path(__file__).resolve().parents[3]
GIB = 1024**3
CPU = Hardware(
    "cpu", "A CPU", 1, 16 * GIB, 16 * GIB, 1, True, True, 2, None, ("gloo",), products=("bfloat16", "float16")
)
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
GUIDE_AUTOTP = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {"type": "auto"},
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "zero_optimization": {"stage": 1, "reduce_bucket_size": "auto", "allgather_bucket_size": "auto"},
    "tensor_parallel": {
        "enabled": True,
        "tp_size": 2,
        "tp_consecutive_ranks": True,
        "pp_partition_method": None,
        "tp_linear_layer_row_parallelism": True,
        "tp_mlp_col_parallelism": True,
    },
    "activation_checkpointing": {
        "partition_activations": False,
        "contiguous_memory_optimization": False,
        "cpu_checkpointing": False,
    },
    "comms_logger": {"enabled": True, "verbose": False, "prof_all": False, "debug": False},
    "wall_clock_breakdown": False,
}


@pytest.fixture
def plan_of(tmp_path: Path) -> Any:
    def make(deepspeed: Any, world: int = 4, **training: Any) -> Plan:
        whole = {
            "model": {"config": MODEL, "tokenizer": "o/t"},
            "data": {"train": "rows.jsonl", "max_length": 64},
            "training": {**({} if deepspeed is None else {"deepspeed": deepspeed}), **training},
        }
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(whole))
        config = load_config(str(path)).config
        return make_plan(Job(config, CPU, world_size=world, launcher="spawn", run_dir=""))

    return make


def said(plan: Plan) -> dict[str, Any]:
    return {d.subject: d for d in plan.decisions}


@pytest.mark.parametrize(
    ("yaml", "taken"), [({}, True), ({"lr_scheduler_type": "cosine", "optim": "adamw_torch"}, False)]
)
def test_blocks_of_the_file_that_are_not_used_are_not_said_to_be_read(
    plan_of: Any, yaml: dict[str, str], taken: bool
) -> None:
    block = {
        "optimizer": {"type": "SGD" if not taken else "AdamW", "params": {}},
        "scheduler": {"type": "WarmupLR", "params": {}},
        "zero_optimization": {"stage": 2},
    }
    found = said(plan_of(block, **yaml))
    for subject in ("deepspeed optimizer", "deepspeed scheduler"):
        assert ("is not used" in found[subject].reason) is not taken, found[subject]
        assert ("is read as" in found[subject].reason) is taken


@pytest.mark.parametrize("ratio", [1.0, 0.3])
def test_offload_s_ratio_reaches_the_forecast(plan_of: Any, ratio: float) -> None:
    """ZeRO-Offload++: a part of the optimizer states stays on the card."""
    place = {"device": "cpu", "ratio": ratio}
    plan = plan_of({"zero_optimization": {"stage": 3, "offload_optimizer": place}})
    layout = strategy_spec(plan.strategy).layout(plan.mesh, plan.engine)
    assert layout is not None and (layout.offload, layout.offloaded) == ("optimizer", ratio)


def has_auto(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(has_auto(item) for item in value.values())
    return bool(value == "auto")


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (ROOT / "configs" / "deepspeed").glob("*.json"))
)
def test_the_guide_s_files_compile_without_auto(plan_of: Any, name: str) -> None:
    plan = plan_of(str(ROOT / "configs" / "deepspeed" / name), per_device_train_batch_size=2, bf16=True)
    config = plan.engine.config
    assert (
        not has_auto(config) and config["bf16"] == {"enabled": True} and config["fp16"] == {"enabled": False}
    )
    assert not {"optimizer", "scheduler", "train_batch_size"} & set(config)
    assert config["zero_optimization"]["stage"] == plan.engine.zero_stage > 0
    assert config["zero_allow_untested_optimizer"] is True and config["zero_force_ds_cpu_optimizer"] is False


def test_the_autotp_guide_is_translated_whole(plan_of: Any) -> None:
    plan = plan_of(GUIDE_AUTOTP, bf16=True, per_device_train_batch_size=4, gradient_accumulation_steps=4)
    assert plan.mesh == Mesh(dp_shard=2, tp=2) and plan.batch.global_batch == 4 * 4 * 2
    assert plan.engine.autotp_size == 2 and plan.engine.config["tensor_parallel"] == {"autotp_size": 2}
    assert plan.engine.config["comms_logger"]["enabled"] is True and not has_auto(plan.engine.config)


def test_auto_is_filled_from_the_yaml_and_the_hidden_size(plan_of: Any) -> None:
    block = dict.fromkeys(
        ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
    )
    auto = {
        "gradient_clipping": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    plan = plan_of(
        {**auto, "zero_optimization": {"stage": 3, "sub_group_size": 1e9, **block}},
        per_device_train_batch_size=3,
        gradient_accumulation_steps=5,
        max_grad_norm=0.7,
    )
    config = plan.engine.config
    zero = config["zero_optimization"]
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (3, 5)
    assert config["gradient_clipping"] == 0.7
    assert zero["reduce_bucket_size"] == 4096 and zero["stage3_prefetch_bucket_size"] == 3686
    assert zero["stage3_param_persistence_threshold"] == 640 and isinstance(zero["sub_group_size"], int)


def test_a_batch_that_does_not_multiply_is_repaired_and_said(plan_of: Any) -> None:
    triple = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
    plan = plan_of({**triple, "zero_optimization": {"stage": 2}})
    told = said(plan)["train_batch_size"]
    assert (
        plan.batch.global_batch == 128 and told.choice == "128" and not told.granted and "32" in told.reason
    )
    # 32 it is
    assert "train_batch_size" not in said(plan_of({**triple, "zero_optimization": {"stage": 2}}, 1))
    derived = plan_of(
        {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}
    )
    assert (derived.batch.micro_batch, derived.batch.accumulation, derived.batch.global_batch) == (4, 2, 32)


def test_precision_has_one_owner(plan_of: Any) -> None:
    scaled = {"fp16": {"enabled": "auto", "initial_scale_power": 8}, "zero_optimization": {"stage": 2}}
    fp16 = plan_of(scaled, fp16=True).engine.config
    assert fp16["fp16"]["enabled"] is True and fp16["fp16"]["initial_scale_power"] == 8
    assert fp16["data_types"] == {"grad_accum_dtype": "fp32"} and fp16["communication_data_type"] == "fp32"
    whole = plan_of(scaled, mixed_precision="no").engine.config
    assert whole["fp16"] == whole["bf16"] == {"enabled": False} and "data_types" not in whole
    zero0 = plan_of({"zero_optimization": {"stage": 0}}, bf16=True)
    assert zero0.engine.zero_stage == 0 and zero0.engine.config["bf16"] == {"enabled": False}
    assert "drifts" in said(zero0)["deepspeed precision"].reason


def test_offload_by_every_spelling(plan_of: Any) -> None:
    new = plan_of(
        {
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
                "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
            }
        }
    )
    assert (new.engine.offload_optimizer, new.engine.offload_param) == ("cpu", "nvme")
    old = plan_of({"zero_optimization": {"stage": 2, "cpu_offload": True}})
    assert old.engine.offload_optimizer == "cpu"
    assert old.engine.config["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    low = plan_of({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})
    assert low.engine.offload_param == "none" and not said(low)["zero_optimization.offload_param"].granted
    assert "offload_param" not in low.engine.config["zero_optimization"]
    assert plan_of(None, distributed_strategy="zero3").engine.offload_optimizer == "none"


def test_ulysses_and_autotp_of_the_mesh(plan_of: Any) -> None:
    sp = plan_of({"zero_optimization": {"stage": 1}}, parallelism={"cp_size": 2})
    assert sp.mesh == Mesh(dp_shard=2, cp=2) and sp.engine.sequence_parallel_size == 2
    first = {"zero_optimization": {"stage": 1}, "sequence_parallel_size": 2}
    assert plan_of(first).engine.zero_stage == 1
    low = plan_of({**first, "bf16": {"enabled": True}})
    assert low.engine.zero_stage == low.engine.config["zero_optimization"]["stage"] == 2
    assert not said(low)["ZeRO stage"].granted and "gradient norm" in said(low)["ZeRO stage"].reason
    tp = plan_of(None, distributed_strategy="zero1", parallelism={"tp_size": 2})
    assert tp.mesh == Mesh(dp_shard=2, tp=2) and tp.engine.config["tensor_parallel"] == {"autotp_size": 2}


def test_two_sizes_for_one_axis_are_refused(plan_of: Any) -> None:
    with pytest.raises(ConfigError, match="differ"):
        plan_of(
            {"tensor_parallel": {"autotp_size": 4}, "zero_optimization": {"stage": 1}},
            parallelism={"tp_size": 2},
        )


@pytest.mark.parametrize(
    ("block", "world", "code"),
    [
        ({"tensor_parallel": {"autotp_size": 3}}, 6, "par.tp_heads"),
        ({"sequence_parallel_size": 3}, 6, "par.cp_heads"),
        ({"tensor_parallel": {"autotp_size": 3}}, 4, "par.deepspeed"),
    ],
)
def test_degrees_in_the_file_are_checked_before_the_start(
    plan_of: Any, block: Any, world: int, code: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of({**block, "zero_optimization": {"stage": 1}}, world)
    assert code in [d.code for d in caught.value.diagnostics]


def test_a_tensor_plan_that_autotp_does_not_follow_is_refused(plan_of: Any) -> None:
    """Seen in DeepSpeed's own words, when the ranks had started."""
    block: Any = {"tensor_parallel": {"autotp_size": 2}, "zero_optimization": {"stage": 1}}
    with mock.patch.dict(MODEL, {"model_type": "phi3"}):
        with pytest.raises(ConfigError, match="strategy.deepspeed_tp_plan"):
            plan_of(block)
        own = {"use_default_specs": True, "layer_specs": []}
        found = plan_of({**block, "tensor_parallel": {"autotp_size": 2, "partition_config": own}})
    assert found.engine.autotp_size == 2
