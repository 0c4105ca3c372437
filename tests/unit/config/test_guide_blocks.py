"""Every YAML block that the guide prints loads as written, but for the one that sets fp16 and bf16 at
once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.config.render.effective_values import render_show
from paceline.core.errors import ConfigError
from paceline.rules import check
from paceline.rules.rule import Facts

BLOCKS = Path(__file__).parents[2] / "golden" / "guide_blocks"
BOTH = "block_18.yaml"

EXPECTED = {
    1: {"distributed_strategy": "auto"},
    2: {
        "distributed": True,
        "distributed_strategy": "ddp",
        "per_device_train_batch_size": 8,
        "dataloader_num_workers": 4,
        "dataloader_pin_memory": True,
        "gradient_accumulation_steps": 4,
        "mixed_precision": "fp16",
        "max_grad_norm": 1.0,
    },
    3: {
        "distributed_strategy": "deepspeed",
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "learning_rate": 3e-5,
        "mixed_precision": "fp16",
    },
    4: {
        "ddp_backend": "nccl",
        "ddp_find_unused_parameters": False,
        "ddp_bucket_cap_mb": 25,
        "ddp_broadcast_buffers": True,
        "mixed_precision": "bf16",
        "gradient_checkpointing": True,
        "dataloader_drop_last": True,
    },
    5: {
        "gradient_checkpointing": True,
        "mixed_precision": "bf16",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
    },
    6: {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "distributed_strategy": "deepspeed",
    },
    7: {"ddp_find_unused_parameters": False, "ddp_bucket_cap_mb": 25},
    8: {"distributed_strategy": "deepspeed", "deepspeed": None},
    9: {"learning_rate": 5e-5, "warmup_steps": 0.1, "lr_scheduler_type": "cosine"},
    10: {"learning_rate": 3e-5, "warmup_steps": 0.1, "adam_beta1": 0.8, "weight_decay": 3e-7},
    11: {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "gradient_checkpointing": True,
        "mixed_precision": "bf16",
    },
    12: {"seed": 42},
    13: {
        "experiment_name": "sft_4gpu_experiment",
        "save_steps": 500.0,
        "save_total_limit": 3,
        "logging_steps": 50.0,
        "report_to": ("tensorboard", "wandb"),
    },
    14: {
        "resume_from_checkpoint": "./outputs/experiment/checkpoints/latest",
        "save_strategy": "steps",
        "save_steps": 1000.0,
    },
    15: {"mixed_precision": "fp16", "gradient_accumulation_steps": 8},
    16: {"distributed_strategy": "deepspeed", "per_device_train_batch_size": 1},
    17: {"dataloader_num_workers": 8, "dataloader_pin_memory": True, "dataloader_prefetch_factor": 2},
}


@pytest.mark.parametrize("number", EXPECTED)
def test_a_block_loads_as_written(number):
    loaded = load_config(str(BLOCKS / f"block_{number:02d}.yaml"))
    training = loaded.config.training
    assert {name: getattr(training, name) for name in EXPECTED[number]} == EXPECTED[number]
    assert render_show(loaded)


def test_every_block_is_covered():
    assert len(list(BLOCKS.glob("block_*.yaml"))) == len(EXPECTED) + 1


def test_fp16_and_bf16_at_once_is_refused_with_both_lines():
    with pytest.raises(ConfigError) as caught:
        load_config(str(BLOCKS / BOTH))
    (found,) = caught.value.diagnostics
    assert found.code == "prec.fp16_and_bf16"
    assert f"{BOTH}:3" in found.where
    assert f"{BOTH}:7" in found.where


@pytest.mark.parametrize("number", [3, 6, 10, 16])
def test_a_block_loads_without_its_deepspeed_file_and_cannot_start(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_bytes((BLOCKS / f"block_{number:02d}.yaml").read_bytes())
    loaded = load_config(str(path))
    assert [note.code for note in loaded.notes if note.code == "config.foreign_missing"]
    assert "config.foreign_missing" in {
        d.code for d in check(loaded.config, Facts(), starting=True, provenance=loaded.provenance)
    }
    assert "config.foreign_missing" not in {
        d.code for d in check(loaded.config, Facts(), provenance=loaded.provenance)
    }


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "zero3_gather"])
def test_the_guides_deepspeed_files_load(name, load):
    file = BLOCKS / "configs" / "deepspeed" / f"{name}.json"
    loaded = load(f"training:\n  deepspeed: {file}\n")
    assert isinstance(loaded.config.training.deepspeed, dict)
    assert loaded.config.training.distributed_strategy == "deepspeed"
