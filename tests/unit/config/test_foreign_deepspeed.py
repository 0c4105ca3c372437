"""DeepSpeed's JSON as people write it: old spellings, switched-off blocks, comments, traps; each kept,
translated or refused with its line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.config.backend_files.deepspeed.deepspeed_file import batch_of
from paceline.config.backend_files.deepspeed.normalize import table
from paceline.core.diagnostics import Severity
from paceline.rules import check
from paceline.rules.rule import Facts

Read = Callable[..., Any]


@pytest.fixture
def read(load, tmp_path) -> Read:
    """Loads a config whose only setting is this DeepSpeed file (and more YAML)."""

    def run(content: Any, more: str = "") -> Any:
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        (tmp_path / "ds.json").write_text(text, encoding="utf-8")
        return load(f"training:\n  deepspeed: ds.json\n{more}")

    return run


@pytest.fixture
def wrong(refuse, tmp_path) -> Read:
    """(code, line) of everything that is refused."""

    def run(content: Any, more: str = "") -> list[tuple[str, str]]:
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        (tmp_path / "ds.json").write_text(text, encoding="utf-8")
        found = refuse(f"training:\n  deepspeed: ds.json\n{more}").diagnostics
        assert all(item.hint for item in found)
        return [(item.code, item.where.rpartition(":")[2]) for item in found]

    return run


def _notes(loaded: Any, severity: Severity | None = None) -> set[str]:
    return {
        n.found
        for n in loaded.notes
        if n.code == "config.foreign_not_taken" and severity in (None, n.severity)
    }


ZERO = "zero_optimization"


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        (
            {ZERO: {"stage": "2", "reduce_bucket_size": 5e8, "overlap_comm": "true"}},
            {ZERO: {"stage": 2, "reduce_bucket_size": 500_000_000, "overlap_comm": True}},
        ),
        (
            {ZERO: {"stage": 2, "cpu_offload": True}},
            {ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
        ),
        (
            {ZERO: {"stage": 3, "cpu_offload_params": True, "cpu_offload": False}},
            {ZERO: {"stage": 3, "offload_param": {"device": "cpu"}}},
        ),
        (
            {ZERO: {"stage": 2, "cpu_offload": True, "cpu_offload_use_pin_memory": True}},
            {ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}},
        ),
        (
            {
                ZERO: {
                    "stage": 3,
                    "stage3_gather_fp16_weights_on_model_save": True,
                    "prefetch_bucket_size": 10,
                }
            },
            {
                ZERO: {
                    "stage": 3,
                    "stage3_gather_16bit_weights_on_model_save": True,
                    "stage3_prefetch_bucket_size": 10,
                }
            },
        ),
        ({ZERO: True}, {ZERO: {"stage": 1}}),
        ({ZERO: {"stage": "auto"}}, {ZERO: {"stage": 2}}),
        ({"bfloat16": {"enabled": "auto"}}, {"bf16": {"enabled": "auto"}}),
        (
            {"bf16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16}},
            {"bf16": {"enabled": "auto"}},
        ),
        ({"tensor_parallel": {"enabled": True, "tp_size": 2}}, {"tensor_parallel": {"autotp_size": 2}}),
        (
            {"tensor_parallel": {"tp": {"tp_size": 2}}},
            {"tensor_parallel": {"tp": {"tp_size": 2}, "autotp_size": 2}},
        ),
        ({"tensor_parallel": {"enabled": False, "tp_size": 2}}, {}),
        (
            {
                "sparse_gradients": True,
                "amp": {"enabled": "auto", "opt_level": "auto"},
                "nebula": {"enabled": True},
            },
            {},
        ),
        (
            {
                "compression_training": {
                    "weight_quantization": {
                        "shared_parameters": {"enabled": False},
                        "different_groups": {"a": {"bits": 8}},
                    }
                }
            },
            {},
        ),
        (
            {
                "elasticity": {"enabled": False, "max_train_batch_size": 64},
                "hybrid_engine": {"enabled": True},
            },
            {},
        ),
        (
            {"checkpoint": {"load_universal": True}, "pipeline": {"seed_layers": True}, "vocabulary_size": 8},
            {},
        ),
        ({"_comment": "mine", "//": "too", "wall_clock_breakdown": False}, {"wall_clock_breakdown": False}),
    ],
)
def test_a_translated_spelling_is_said_and_reads_back_as_itself(read, written, normal):
    loaded = read(written)
    assert loaded.config.training.deepspeed == normal
    assert _notes(loaded) or "overlap_comm" in str(written)
    if normal:
        again = read(normal)
        assert again.config.training.deepspeed == normal
        assert not [n for n in again.notes if n.severity is Severity.WARNING]


def test_every_key_of_deepspeed_passes_with_auto(read):
    def auto(spec: dict[str, Any]) -> dict[str, Any]:
        return {key: auto(value) if isinstance(value, dict) else "auto" for key, value in spec.items()}

    skipped = ("compression_training", "quantize_training", "eigenvalue", "expert_parallel")
    written = auto({key: value for key, value in table().items() if key not in skipped})
    assert read(written).config.training.distributed_strategy == "deepspeed"


def test_the_table_holds_every_field_of_the_installed_deepspeed():
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    offload = pytest.importorskip("deepspeed.runtime.zero.offload_config")
    precision = pytest.importorskip("deepspeed.runtime.precision_config")
    zero = table()[ZERO]
    old = {
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "stage3_gather_fp16_weights_on_model_save",
    }
    fields = {info.alias or name for name, info in config.DeepSpeedZeroConfig.model_fields.items()} - old
    assert fields == set(zero)
    assert set(offload.DeepSpeedZeroOffloadOptimizerConfig.model_fields) == set(zero["offload_optimizer"])
    assert set(offload.DeepSpeedZeroOffloadParamConfig.model_fields) == set(zero["offload_param"])
    assert set(precision.DeepSpeedFP16Config.model_fields) == set(table()["fp16"])
    assert set(precision.DeepSpeedBF16Config.model_fields) == set(table()["bf16"])


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({"fp16": {}, "gradient_accumulation_step": 2}, [("zero.unknown_toplevel", "3")]),
        ({"fp16": {}, "stage": 3}, [("zero.unknown_toplevel", "3")]),
        ({ZERO: {"stage": 3, "stage3_param_persitence_threshold": 1}}, [("zero.unknown_key", "4")]),
        ({ZERO: {"stage": 4}}, [("config.type", "3")]),
        ({ZERO: {"stage": [1, 2]}}, [("zero.tuning_space", "3")]),
        ({ZERO: {"stage": 3, "offload_param": {"device": "nvme"}}}, [("zero.nvme_path", "5")]),
        ({ZERO: {"stage": 3, "offload_param": {"device": "gpu"}}}, [("config.type", "5")]),
        ({"fp16": 1.5}, [("config.type", "2")]),
        ({"compression_training": {"layer_reduction": {"enabled": True}}}, [("zero.not_built", "2")]),
        ({"curriculum_learning": {"enabled": True}}, [("zero.not_built", "2")]),
        ({"progressive_layer_drop": {"enabled": True}}, [("zero.not_built", "2")]),
        ({"elasticity": {"enabled": True}}, [("zero.not_built", "2")]),
        ({ZERO: {"stage": 3, "mics_shard_size": 4}}, [("zero.not_built", "4")]),
        ({"gradient_allreduce_op": "sum"}, [("zero.not_built", "2")]),
        ({"amp": {"enabled": True, "opt_level": "O1"}, ZERO: {"stage": 1}}, [("prec.amp_zero", "2")]),
        ({"optimizer": {"type": "OneBitLamb", "params": {"lr": 0.01}}}, [("zero.optimizer", "3")]),
        ({"optimizer": {"type": "Adam", "params": {"bias_correction": False}}}, [("zero.optimizer", "5")]),
        ({"scheduler": {"type": "OneCycle", "params": {}}}, [("zero.scheduler", "3")]),
        ({"comet": {"enabled": True, "api_key": "abcdef"}}, [("sec.secret_on_cli", "4")]),
        ({ZERO: {"offload_optimizer": {"device": "cpu", "speed": 1}}}, [("zero.unknown_key", "5")]),
        ({"tensor_parallel": {"tp_size": 2, "autotp_size": 4}}, [("config.conflict", "3")]),
    ],
)
def test_what_cannot_be_is_refused_at_its_line(wrong, written, found):
    assert wrong(written) == found


def test_a_higher_layer_decides_what_the_file_cannot(read):
    loaded = read(
        {"optimizer": {"type": "Lamb"}, "scheduler": {"type": "OneCycle"}},
        "  optim: sgd\n  lr_scheduler_type: cosine\n",
    )
    assert (loaded.config.training.optim, loaded.config.training.lr_scheduler_type) == ("sgd", "cosine")
    absent = {""}  # what is said of keys that are not there
    assert _notes(loaded) == {"optimizer.type", "scheduler.type", *absent}


def test_what_is_computed_exactly_instead_is_a_warning(read):
    written = {
        "log": True,
        "offload_optimizer": {"device": "cpu"},
        "optimizer": {
            "type": "OneBitAdam",
            "params": {"lr": 1e-4, "freeze_step": 100, "bias_correction": False},
        },
        ZERO: {"stage": 2, "zenflow": {"topk_ratio": 0.1}},
    }
    loaded = read(written)
    told = {
        "log",
        "offload_optimizer",
        "optimizer.type",
        "optimizer.params.bias_correction",
        f"{ZERO}.zenflow",
    }
    assert _notes(loaded, Severity.WARNING) == told
    assert loaded.config.training.optim == "adamw_torch_fused"
    assert loaded.config.training.deepspeed[ZERO] == {"stage": 2}


def test_precision_drop_last_and_trackers_belong_to_training(read):
    blocks = {
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
        "dataloader_drop_last": True,
        "tensorboard": {"enabled": True},
        "compile": {"disable": False},
    }
    t = read(blocks).config.training
    assert (t.mixed_precision, t.dataloader_drop_last, t.report_to, t.deepspeed) == (
        "bf16",
        True,
        ("tensorboard",),
        {},
    )
    assert t.torch_compile is False
    assert read({"amp": {"enabled": True, "opt_level": "O1"}}).config.training.mixed_precision == "fp16"


def test_comments_and_commas_too_many_pass_as_in_deepspeed(read, wrong):
    text = (
        '{\n  // mine\n  "fp16": {"enabled": true,}, # x\n  /* two\n lines */ "gradient_clipping": 2, // "a,'
        ' }"\n}\n'
    )
    loaded = read(text)
    assert (loaded.config.training.max_grad_norm, loaded.config.training.mixed_precision) == (2.0, "fp16")
    assert loaded.provenance["training.max_grad_norm"].line == 5
    assert wrong('{\n "fp16": {"enabled": true},\n "train_batch_size" : BATCH_SIZE,\n}') == [
        ("config.json_template", "3")
    ]
    assert wrong('{\n "fp16": {} // one\n "bf16": {}\n}') == [("config.json_syntax", "3")]


def test_a_neox_file_gives_deepspeeds_keys_and_says_so(read):
    loaded = read(
        {
            "num-layers": 2,
            "hidden-size": 64,
            "weight-decay": 0.1,
            "fp16": {"fp16": True, "loss_scale": 0},
            ZERO: {"stage": 1},
        }
    )
    assert loaded.config.training.deepspeed == {
        "fp16": {"enabled": True, "loss_scale": 0},
        ZERO: {"stage": 1},
    }
    assert _notes(loaded, Severity.WARNING) == {"num-layers"}


@pytest.mark.parametrize(
    ("written", "more", "ranks", "split"),
    [
        ({"train_batch_size": 64}, "", 4, (16, 1)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, "", 4, (8, 2)),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, "", 4, (4, 4)),
        ({"train_batch_size": 64}, "  per_device_train_batch_size: 2\n", 4, (2, 8)),
        (
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto",
            },
            "",
            4,
            (8, 1),
        ),
        (
            {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8},
            "",
            4,
            (4, 8),
        ),
        ({"train_batch_size": 6}, "", 4, (1, 1)),
    ],
)
def test_the_batch_follows_from_the_total_where_the_file_leaves_it_open(read, written, more, ranks, split):
    t = read(written, more).config.training
    micro, steps, says = batch_of(
        t.deepspeed, t.per_device_train_batch_size, t.gradient_accumulation_steps, ranks
    )
    assert (micro, steps) == split
    assert ("does not divide" in (says or "")) == (written == {"train_batch_size": 6})
    assert bool(says) == (len(written) + bool(more) < 3)


def test_a_path_that_is_not_there_stays_a_path(load, tmp_path: Path):
    loaded = load("training:\n  deepspeed: none.json\n")
    assert loaded.config.training.deepspeed == "none.json"
    assert "config.foreign_missing" in {
        d.code for d in check(loaded.config, Facts(), starting=True, provenance=loaded.provenance)
    }


GUIDE = """\
{
  "train_batch_size": "auto", // by the YAML
  "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "scheduler": {
    "type": "auto" // as the YAML says
  },
  "fp16": { // or bf16
    "enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1
  },
  "zero_optimization": {"stage": 1, "reduce_bucket_size": "auto", "allgather_bucket_size": "auto"},
  "tensor_parallel": { // the heart of it
    "enabled": true,
    "tp_size": 2, // two devices share a matrix
    "tp_consecutive_ranks": true,
    "pp_partition_method": null,
    "tp_linear_layer_row_parallelism": true,
    "tp_attention_col_parallelism": true
  },
  "activation_checkpointing": {"partition_activations": false, "cpu_checkpointing": false},
  "gradient_clipping": "auto", "steps_per_print": 10, "wall_clock_breakdown": false,
  "comms_logger": {"enabled": false, "verbose": false, "prof_all": false, "debug": false}
}
"""  # noqa: E501


def test_autotp_as_the_guide_writes_it_with_comments_is_taken_whole(read, load):
    loaded = read(GUIDE)
    assert loaded.config.training.deepspeed["tensor_parallel"] == {"autotp_size": 2}
    assert loaded.config.training.deepspeed["zero_optimization"]["stage"] == 1
    written = {
        f"tensor_parallel.{key}"
        for key in (
            "tp_size",
            "tp_consecutive_ranks",
            "pp_partition_method",
            "tp_linear_layer_row_parallelism",
            "tp_attention_col_parallelism",
        )
    }
    assert _notes(loaded) >= written
    assert not [n for n in loaded.notes if n.severity is Severity.WARNING]
