"""DeepSpeed, FSDP and Accelerate files as the lowest layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DS = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 3e-5, "betas": [0.8, 0.95], "eps": "auto", "weight_decay": 0.1},
    },
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 50, "warmup_max_lr": 3e-5}},
    "zero_optimization": {"stage": 2},
}


@pytest.fixture
def ds(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DS, indent="\t"), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "written",
    [
        "deepspeed: ds.json",
        "deepspeed: {config_path: ds.json}",
        "deepspeed_config: ds.json",
        f"deepspeed: {json.dumps(DS)}",
    ],
)
def test_its_settings_are_the_lowest_layer(load, ds, written):
    loaded = load(f"training:\n  {written}\n")
    t = loaded.config.training
    assert (
        t.per_device_train_batch_size,
        t.gradient_accumulation_steps,
        t.max_grad_norm,
        t.mixed_precision,
    ) == (
        4,
        1,
        0.5,
        "bf16",
    )
    assert (t.learning_rate, t.adam_beta1, t.adam_beta2, t.adam_epsilon, t.weight_decay) == (
        3e-5,
        0.8,
        0.95,
        1e-8,
        0.1,
    )
    assert (t.lr_scheduler_type, t.warmup_steps, t.distributed_strategy) == (
        "warmup_decay_lr",
        50,
        "deepspeed",
    )
    assert t.deepspeed == DS
    source = loaded.provenance["training.learning_rate"]
    assert source.layer == "foreign file"
    assert source.line


def test_a_value_that_the_yaml_overrides_is_reported_with_both_places(load, ds):
    loaded = load("training:\n  deepspeed: ds.json\n  learning_rate: 1e-3\n  max_grad_norm: 0.5\n")
    assert loaded.config.training.learning_rate == 1e-3
    (note,) = [n for n in loaded.notes if n.code == "config.file_value_overridden"]
    line = next(number for number, text in enumerate(ds.read_text().splitlines(), 1) if '"lr"' in text)
    assert note.where.endswith("config.yaml:3")
    assert f"ds.json:{line}" in note.what


def test_a_misspelt_top_level_key_is_refused(refuse, ds):
    ds.write_text('{\n  "zero_optimization": {"stage": 1},\n  "gradient_accumulation_step": 2\n}')
    (found,) = refuse("deepspeed: ds.json").diagnostics
    assert found.code == "zero.unknown_toplevel"
    assert found.where.endswith("ds.json:3")
    assert "gradient_accumulation_steps" in found.hint
    ds.write_text('{"gradient_accumulation_steps": 2}')


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"fp16": {} "bf16": {}}', "config.json_syntax"),
        ('{"train_batch_size": SIZE}', "config.json_template"),
        ("", "config.json_syntax"),
        ("[1]", "config.not_a_mapping"),
        ('{"fp16": {}, "fp16": {}}', "config.duplicate_key"),
        ('{"gradient_clipping": NaN}', "config.json_syntax"),
        ('{"optimizer": 3}', "config.type"),
        ('{"gradient_clipping": "much"}', "config.type"),
    ],
)
def test_a_broken_file_is_named(refuse, ds, text, code):
    ds.write_text(text)
    (found,) = refuse("deepspeed: ds.json").diagnostics
    assert found.code == code
    assert "ds.json" in found.where


def test_what_is_not_taken_is_said(load, ds):
    ds.write_text(
        json.dumps(
            {
                "train_batch_size": 32,
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 2,
                "optimizer": {"type": "Lamb", "params": {}},
                "scheduler": {"type": "auto", "params": {"warmup_min_lr": 1e-7}},
            }
        )
    )
    notes = [
        n.found
        for n in load("{deepspeed: ds.json, optim: sgd}").notes
        if n.code == "config.foreign_not_taken"
    ]
    assert notes == [
        "train_batch_size",
        "",
        "scheduler.params.warmup_min_lr",
        "scheduler.type",
        "optimizer.type",
    ]


def test_another_file_on_the_command_line(load, ds):
    (ds.parent / "other.json").write_text('{"gradient_clipping": 2}')
    t = load("deepspeed: ds.json", "training.deepspeed=other.json").config.training
    assert (t.max_grad_norm, t.learning_rate) == (2.0, 5e-5)
    assert load("deepspeed: ds.json", "training.deepspeed=null").config.training.learning_rate == 5e-5


def test_fsdp_settings(load, refuse, tmp_path):
    (tmp_path / "fsdp.json").write_text(
        '{"fsdp_transformer_layer_cls_to_wrap": ["A"], "activation_checkpointing": true}'
    )
    t = load("training:\n  fsdp: full_shard auto_wrap\n  fsdp_config: fsdp.json\n").config.training
    assert t.fsdp == "full_shard"
    assert t.gradient_checkpointing is True
    assert t.fsdp_config == {
        "auto_wrap_policy": "transformer",
        "transformer_layer_cls_to_wrap": ["A"],
        "activation_checkpointing": True,
        "reshard_after_forward": True,
    }
    (found,) = refuse("training:\n  fsdp_config:\n    min_num_parms: 3\n").diagnostics
    assert (found.code, found.where.rpartition(":")[2]) == ("fsdp.unknown_key", "3")
    assert "min_num_params" in found.hint


def test_fsdp_settings_that_are_no_mapping(refuse, tmp_path):
    (tmp_path / "fsdp.json").write_text('{"fsdp": "full_shard", "fsdp_config": "words"}')
    (found,) = refuse("training:\n  fsdp_config: fsdp.json\n").diagnostics
    assert (found.code, found.found) == ("config.type", "words")


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
downcast_bf16: 'no'
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29501
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
"""


def test_accelerate(load, refuse, tmp_path):
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    config = load("training:\n  accelerate_config: acc.yaml\n").config
    assert config.training.mixed_precision == "bf16"
    assert config.training.distributed_strategy == "ddp"
    assert config.launch.model_dump(exclude_defaults=True) == {
        "nproc": 4,
        "nnodes": 2,
        "node_rank": 1,
        "master_addr": "10.0.0.1",
        "master_port": 29501,
    }
    assert (
        load("training: {accelerate_config: acc.yaml, bf16: false}").config.training.mixed_precision == "no"
    )
    (tmp_path / "acc.yaml").write_text("distributed_type: NO\nnum_proceses: 2\n")
    (found,) = refuse("training:\n  accelerate_config: acc.yaml\n").diagnostics
    assert (found.code, found.hint) == ("accelerate.unknown_key", "did you mean 'num_processes'?")
