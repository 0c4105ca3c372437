"""What `accelerate config` writes: its FSDP, DeepSpeed, Megatron, parallelism and dynamo blocks, and its
keys for launchers and TPUs.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from paceline.config.backend_files.deepspeed.key_verdicts import (
    DROPPED,
    NO_OPTIMIZER,
    NO_SCHEDULE,
    NOT_GRANTED,
    REFUSED,
)
from paceline.config.backend_files.docs_page import reference
from paceline.config.backend_files.json_text import parse_json
from paceline.core.diagnostics import Severity
from paceline.rules import of_config

HEAD = """\
compute_environment: LOCAL_MACHINE
debug: false
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_process_ip: null
main_process_port: null
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
FSDP1 = """\
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: true
"""
FSDP2 = """\
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_reshard_after_forward: false
  fsdp_version: 2
"""
ZERO3 = """\
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_multinode_launcher: standard
  deepspeed_moe_layer_cls_names: AMoeBlock
  gradient_accumulation_steps: 4
  gradient_clipping: 0.5
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
"""


@pytest.fixture
def read(load, tmp_path):
    def run(text: str, more: str = "") -> Any:
        (tmp_path / "acc.yaml").write_text(text, encoding="utf-8")
        return load(f"training:\n  accelerate_config: acc.yaml\n{more}")

    return run


@pytest.fixture
def wrong(refuse, tmp_path):
    def run(text: str) -> list[tuple[str, str]]:
        (tmp_path / "acc.yaml").write_text(text, encoding="utf-8")
        found = refuse("training:\n  accelerate_config: acc.yaml\n").diagnostics
        assert all(item.hint and "acc.yaml" in item.where for item in found)
        return [(item.code, item.where.rpartition(":")[2]) for item in found]

    return run


def test_fsdp_of_version_1(read):
    loaded = read(HEAD + FSDP1)
    t = loaded.config.training
    assert (t.distributed_strategy, t.fsdp, t.mixed_precision) == ("fsdp", "hybrid_shard", "bf16")
    assert t.fsdp_config == {
        "auto_wrap_policy": "transformer",
        "backward_prefetch": "backward_pre",
        "cpu_ram_efficient_loading": True,
        "forward_prefetch": False,
        "cpu_offload": False,
        "state_dict_type": "sharded_state_dict",
        "sync_module_states": True,
        "use_orig_params": True,
        "version": 1,
        "reshard_after_forward": True,
    }
    assert loaded.config.launch.nproc == 8
    assert not [n for n in loaded.notes if n.severity is not Severity.NOTE]
    assert read(HEAD + FSDP1, "  fsdp: full_shard\n").config.training.fsdp_config == {
        "reshard_after_forward": True
    }


def test_fsdp_of_version_2_with_a_mesh(read):
    mesh = (
        "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size:"
        " 2\n  parallelism_config_cp_size: 2\n  parallelism_config_cp_comm_strategy: allgather\n"
    )
    t = read(HEAD + FSDP2 + mesh).config.training
    assert (t.fsdp, t.gradient_checkpointing) == ("hybrid_shard_zero2", True)
    assert t.fsdp_config == {"activation_checkpointing": True, "version": 2, "reshard_after_forward": False}
    p = t.parallelism
    assert (p.dp_replicate_size, p.dp_shard_size, p.cp_size, p.cp_method) == (2, 2, 2, "allgather")


def test_zero3(read):
    loaded = read(HEAD + ZERO3)
    t = loaded.config.training
    assert (t.distributed_strategy, t.gradient_accumulation_steps, t.max_grad_norm) == ("deepspeed", 4, 0.5)
    assert t.deepspeed == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.5,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "none"},
            "stage3_gather_16bit_weights_on_model_save": True,
            "leaf_module": {"classes": ["AMoeBlock"]},
        },
    }
    assert "zero3_init_flag" in {n.found for n in loaded.notes}
    assert read(HEAD + "distributed_type: DEEPSPEED\n").config.training.deepspeed["zero_optimization"] == {
        "stage": 2
    }


def test_a_deepspeed_file_lies_beside_the_accelerate_file(read, tmp_path):
    (tmp_path / "z.json").write_text('{"zero_optimization": {"stage": 1}, "gradient_clipping": 2}')
    text = (
        HEAD + "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: z.json\n "
        " zero3_init_flag: false\n"
    )
    t = read(text).config.training
    assert (t.deepspeed["zero_optimization"], t.max_grad_norm) == ({"stage": 1}, 2.0)
    missing = read(text.replace("z.json", "away/z.json"))
    assert missing.config.training.deepspeed == "away/z.json"
    assert "config.foreign_missing" in {n.code for n in missing.notes}
    own = read(text, "  deepspeed: null\n  distributed_strategy: ddp\n").config.training
    assert (own.deepspeed, own.distributed_strategy) == (None, "ddp")


def test_ulysses_under_deepspeed(read):
    mesh = (
        "parallelism_config:\n  parallelism_config_sp_size: 2\n  parallelism_config_sp_backend: deepspeed\n "
        " parallelism_config_sp_attn_implementation: flash_attention_2\n"
    )
    t = read(HEAD + ZERO3 + mesh).config.training
    assert (t.deepspeed["sequence_parallel_size"], t.parallelism.cp_size, t.parallelism.cp_method) == (
        2,
        2,
        "ulysses",
    )


def test_megatron_degrees_on_the_native_mesh(read):
    block = (
        "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n "
        " megatron_lm_pp_degree: 2\n  megatron_lm_num_micro_batches: 3\n  megatron_lm_sequence_parallelism:"
        " true\n  megatron_lm_recompute_activations: true\n  megatron_lm_gradient_clipping: 0.7\n "
        " megatron_lm_use_distributed_optimizer: true\n"
    )
    t = read(HEAD + block).config.training
    p = t.parallelism
    assert (t.distributed_strategy, p.pp_size, p.tp_size, p.dp_shard_size, p.sequence_parallel) == (
        "pipeline",
        2,
        2,
        2,
        True,
    )
    assert (t.gradient_accumulation_steps, t.gradient_checkpointing, t.max_grad_norm) == (3, True, 0.7)


def test_machines_in_quotes_are_no_number(wrong):
    text = "distributed_type: MULTI_GPU\nsame_network: false\nnum_machines: '2'\nnum_processes: 4\n"
    assert wrong(text) == [("config.value", "4")]


def test_launcher_keys_and_what_is_only_said(read):
    text = """\
distributed_type: MULTI_CPU
debug: true
downcast_bf16: 'yes'
gpu_ids: 0,1
rdzv_backend: c10d
same_network: false
main_process_ip: 10.0.0.2
main_process_port: 29555
machine_rank: 1
num_machines: 2
num_processes: 4
mixed_precision: 'no'
main_training_function: train
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: default, dynamo_use_dynamic: true}
fsdp_config: {fsdp_offload_params: true}
mpirun_config: {mpirun_ccl: '1'}
tpu_name: mine
"""
    loaded = read(text)
    t, launch = loaded.config.training, loaded.config.launch
    assert (t.distributed_strategy, t.use_cpu, t.mixed_precision, t.fsdp) == ("ddp", True, "no", None)
    assert (t.torch_compile, t.torch_compile_backend, t.torch_compile_mode) == (True, "inductor", None)
    assert (launch.nproc, launch.nnodes, launch.node_rank, launch.master_addr, launch.master_port) == (
        2,
        2,
        1,
        "10.0.0.2",
        29555,
    )
    assert {n.found for n in loaded.notes} == {
        "debug",
        "downcast_bf16",
        "gpu_ids",
        "rdzv_backend",
        "same_network",
        "main_training_function",
        "dynamo_use_dynamic",
        "fsdp_config",
        "mpirun_config",
        "tpu_name",
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("distributed_type: TPU\n", [("accelerate.not_built", "1")]),
        ("distributed_type: XLA\n", [("accelerate.not_built", "1")]),
        ("distributed_type: MULTI_GPUS\n", [("config.value", "1")]),
        ("compute_environment: AMAZON_SAGEMAKER\nec2_instance_type: x\n", [("accelerate.not_built", "1")]),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  enable_msamp: true\n",
            [("accelerate.not_built", "3")],
        ),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_shardin_strategy: 1\n", [("fsdp.unknown_key", "3")]),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_state_dict_type: ALL\n", [("fsdp.value", "3")]),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stag: 3\n",
            [("accelerate.unknown_key", "3")],
        ),
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 5\n", [("config.type", "3")]),
        ("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 3\n", [("config.value", "3")]),
    ],
)
def test_what_cannot_be_is_refused_at_its_line(wrong, text, found):
    assert wrong(text) == found


def test_the_file_may_be_json(load, tmp_path):
    (tmp_path / "acc.json").write_text(
        json.dumps(
            {
                "distributed_type": "FSDP",
                "num_processes": 2,
                "mixed_precision": "bf16",
                "fsdp_config": {"fsdp_version": 2},
            }
        )
    )
    t = load("training:\n  accelerate_config: acc.json\n").config.training
    assert (t.distributed_strategy, t.fsdp, t.fsdp_config) == ("fsdp", None, {"version": 2})


FILES = {
    "acc.yaml": (HEAD + ZERO3, "accelerate", "taken"),
    "ds.json": ('{"zero_optimization": {"stage": 2}, "fp16": {"enabled": "auto"}}', "deepspeed", "taken"),
    "old.json": ('{"zero_optimization": {"stage": 3, "mics_shard_size": 8}}', "deepspeed", "refused"),
    "bare.json": ('{"train_batch_size": CONFIG_BATCH_SIZE}', "config", "template"),
    "quoted.json": ('{"zero_optimization": {"stage": "{{stage}}"}}', "deepspeed", "template"),
    "tune.json": ('{"zero_optimization": {"stage": [0, 1]}}', "deepspeed", "template"),
    "half.json": ('{"fp16": {', "config", "unparseable"),
    "fsdp.json": ('{"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2}}', "fsdp", "taken"),
    "args.yaml": ("learning_rate: 1e-4\nfsdp: full_shard\n", "config", "taken"),
    "list.yaml": ("- 1\n", "config", "refused"),
    "tokens.yaml": (
        (
            "base_model: x\ndatasets: [{path: y}]\nspecial_tokens: {eos_token: <|im_end|>, bos_token: <s>,"
            " pad_token: <PAD>}\n"
        ),
        "config",
        "refused",
    ),
    "jinja.yaml": (
        "nokey: 1\nchat_template: '{{ bos_token }}'\nstop: ['</s>', <|end|>]\n",
        "config",
        "refused",
    ),
    "reference.yaml": ("nokey: ${output_dir}/x\n", "config", "refused"),
    "yours.yaml": ("nokey: <your model here>\n", "config", "template"),
    "upper.yaml": ("nokey: /data/x\nother: <HF_USER>/model\n", "config", "template"),
    "variable.yaml": ("nokey: $MODEL_PATH\n", "config", "template"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_recognised_and_judged(tmp_path, name):
    text, kind, verdict = FILES[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = runpy.run_path("scripts/intake.py")["intake"](str(tmp_path / name), rules=of_config)
    assert (found.kind, found.verdict) == (kind, verdict)
    assert bool(found.problems) == (verdict != "taken")


def test_strict_json_stays_strict_elsewhere():
    with pytest.raises(Exception, match="not valid JSON"):
        parse_json('{"a": 1,}', "x.json", "FSDP config")


def test_the_shipped_list_of_refused_files_is_the_generated_one():
    docs = Path(__file__).parents[3] / "docs/reference/foreign-configs.md"
    assert docs.read_text(encoding="utf-8") == reference()
    for name in (*REFUSED, *NO_OPTIMIZER, *NO_SCHEDULE, *NOT_GRANTED, *DROPPED):
        assert f"| `{name}` |" in reference()


def test_raw_keys_of_deepspeed_pasted_into_the_block_are_taken(read):
    text = """\
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: cpu
  zero_optimization:
    overlap_comm: true
    offload_optimizer: {pin_memory: false}
  optimizer: {type: AdamW, params: {lr: 1e-4, max_grad_norm: 0.3}}
"""
    t = read(text).config.training
    zero = t.deepspeed["zero_optimization"]
    assert zero == {
        "stage": 3,
        "overlap_comm": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": False},
    }
    assert (t.learning_rate, t.max_grad_norm) == (1e-4, 0.3)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (HEAD + ZERO3, "accelerate_config"),
        ('{"zero_optimization": {"stage": 2}}', "deepspeed"),
        ('{"fsdp": "full_shard", "fsdp_config": {}}', "fsdp_config"),
    ],
)
def test_another_systems_file_in_the_place_of_the_config_is_told_where_it_belongs(refuse, text, key):
    (found,) = refuse(text).diagnostics
    assert found.code == "config.foreign_as_config"
    assert f"{key}: " in found.hint


def test_eight_bits_are_computed_in_bf16_with_a_warning(read):
    loaded = read("distributed_type: MULTI_GPU\nmixed_precision: fp8\nfp8_config: {backend: TE}\n")
    assert loaded.config.training.mixed_precision == "bf16"
    (found,) = (n for n in loaded.notes if n.severity is Severity.WARNING)
    assert found.where.endswith("acc.yaml:2")


@pytest.mark.parametrize(
    ("kind", "strategy"), [("MULTI_XPU", "ddp"), ("MULTI_NPU", "ddp"), ("MPS", "single")]
)
def test_devices_of_torch_are_taken_as_they_are(read, kind, strategy):
    loaded = read(f"distributed_type: {kind}\nmixed_precision: bf16\n")
    assert loaded.config.training.distributed_strategy == strategy
    assert [d for d in loaded.notes if kind in d.what] == []


@pytest.mark.parametrize("kind", ["MULTI_HPU", "MULTI_MLU", "MULTI_MUSA", "MULTI_SDAA", "MULTI_NEURON"])
def test_devices_that_are_not_driven_are_said(read, kind):
    said = [
        d
        for d in read(f"distributed_type: {kind}\nnum_processes: 2\nmixed_precision: bf16\n").notes
        if kind in d.what
    ]
    assert [d.severity for d in said] == [Severity.WARNING]
