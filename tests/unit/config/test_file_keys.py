"""Keys of a file that a config names, set one by one on the command line."""

from __future__ import annotations

import json

import pytest

ZERO = {"zero_optimization": {"stage": 3}, "gradient_clipping": 0.5, "train_micro_batch_size_per_gpu": 2}
TEXT = "training: {deepspeed: ds.json}\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(ZERO))
    return tmp_path


def test_a_key_of_the_file_is_set_and_the_others_stay(folder, load):
    loaded = load(TEXT, "training.deepspeed.zero_optimization.stage=2", "deepspeed.gradient_clipping=0.25")
    training = loaded.config.training
    assert training.deepspeed["zero_optimization"]["stage"] == 2
    assert (training.max_grad_norm, training.per_device_train_batch_size) == (0.25, 2)
    place = loaded.provenance["training.max_grad_norm"].place()
    assert place == "command line deepspeed.gradient_clipping=0.25"
    assert loaded.provenance["training.per_device_train_batch_size"].place().endswith("ds.json:1")


def test_the_file_that_the_command_line_names_is_set_too(folder, load):
    (folder / "other.json").write_text(json.dumps(ZERO | {"gradient_clipping": 2.0}))
    stage = "training.deepspeed.zero_optimization.stage=1"
    for written in ((stage, "training.deepspeed=other.json"), ("training.deepspeed=other.json", stage)):
        training = load(TEXT, *written).config.training
        assert (training.deepspeed["zero_optimization"]["stage"], training.max_grad_norm) == (1, 2.0)


def test_a_block_in_the_yaml_is_set_too(load):
    loaded = load(f"training: {{deepspeed: {json.dumps(ZERO)}}}", "deepspeed.zero_optimization.stage=1")
    assert loaded.config.training.deepspeed["zero_optimization"]["stage"] == 1
    assert loaded.config.training.max_grad_norm == 0.5


def test_a_file_of_fsdp_keeps_its_other_keys(tmp_path, load):
    (tmp_path / "fsdp.json").write_text(json.dumps({"reshard_after_forward": True, "min_num_params": 10}))
    text = "training: {fsdp: full_shard, fsdp_config: fsdp.json}"
    assert load(text).config.training.fsdp_config["min_num_params"] == 10
    found = load(text, "training.fsdp_config.min_num_params=20").config.training.fsdp_config
    whole = load(text).config.training.fsdp_config
    assert found == {**whole, "min_num_params": 20}


def test_a_file_of_accelerate_keeps_its_other_keys(tmp_path, load):
    lines = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 2\n"
    (tmp_path / "acc.yaml").write_text(lines)
    loaded = load("training: {accelerate_config: acc.yaml}", "accelerate_config.mixed_precision=fp16")
    assert (loaded.config.training.mixed_precision, loaded.config.launch.nproc) == ("fp16", 2)
    place = loaded.provenance["training.mixed_precision"].place()
    assert place == "command line accelerate_config.mixed_precision=fp16"


def test_a_wrong_key_or_value_stands_where_it_was_written(folder, refuse):
    key, value = "training.deepspeed.zero_optimization.stagee=2", "deepspeed.gradient_clipping=often"
    places = [finding.where for finding in refuse(TEXT, key, value).diagnostics]
    assert sorted(places) == [f"command line {value}", f"command line {key}"]
