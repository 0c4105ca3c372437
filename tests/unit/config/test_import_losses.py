"""Imports lose nothing silently: what is said to be kept is in the config, and what is not is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.commands.command_line import is_command, read_command
from paceline.config.import_export.import_config import flat, import_command, import_config, import_data
from paceline.config.import_export.verdicts import Imported, KeyVerdict, as_json, as_text
from paceline.config.import_export.write_yaml import accepted, left_over, stands
from paceline.config.load import load_config
from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.json_types import as_list, as_object
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.rules import of_config

LOST, MAPPED, NOTHING, DIFFERS = KeyVerdict.LOST, KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT, KeyVerdict.DIFFERS
SWIFT = """#!/bin/bash
# fine-tune
MODEL=base
CUDA_VISIBLE_DEVICES=0 NPROC_PER_NODE=2 \\
swift sft \\
    --model $MODEL --dataset rows.jsonl \\
    --tuner_type lora --lora_rank 8 \\
    --torch_dtype bfloat16 --max_length 256 \\
    --output_dir output 2>&1 | tee log.txt
"""
YAML = """model: base
tuner_type: lora
dataset: data/sw.jsonl
torch_dtype: bfloat16
learning_rate: 1e-4
max_length: 128
"""


def checked(found: Imported, tmp_path: Path) -> Config:
    """The config that the import becomes; all that is said to be kept stands in it."""
    made, problems = accepted(found, "test", of_config)
    assert problems == [] and left_over(made.text, of_config) == []
    kept = [f for f in found.findings.values() if f.verdict is MAPPED and f.line]
    assert [f.key for f in kept if not any(stands(found, to) for to in f.to)] == []
    (tmp_path / "ours.yaml").write_text(made.text)
    return load_config(str(tmp_path / "ours.yaml")).config


def verdicts(found: Imported) -> dict[str, KeyVerdict]:
    return {key: finding.verdict for key, finding in found.findings.items() if finding.line}


@pytest.mark.parametrize(
    ("file", "text", "length", "nproc"), [("run.sh", SWIFT, 256, 2), ("sft.yaml", YAML, 128, 1)]
)
def test_ms_swifts_sft_is_sft(tmp_path: Path, file: str, text: str, length: int, nproc: int | None) -> None:
    path = tmp_path / file
    path.write_text(text)
    found = import_command(read_command([str(path)])) if file == "run.sh" else import_config(str(path))
    assert is_command(str(path)) is (file == "run.sh")
    config = checked(found, tmp_path)
    assert (config.training.algorithm, config.data.train_on) == ("sft", "assistant")
    assert (config.training.mixed_precision, found.findings["torch_dtype"].verdict.value) == (
        "bf16",
        "mapped",
    )
    assert (config.data.max_length, config.data.on_too_long, config.launch.nproc) == (length, "skip", nproc)
    assert config.training.gradient_accumulation_steps * (nproc or 1) == 16
    if file == "run.sh":
        assert found.findings["lora_rank"].line == 7 and config.model.name_or_path == "base"


@pytest.mark.parametrize(
    ("algorithm", "ours", "train_on"),
    [
        (None, "sft", "assistant"),
        ("pt", "sft", "all"),
        ("rlhf", "dpo", "auto"),
        ("kto", "kto", "auto"),
    ],
)
def test_a_file_of_ms_swift_is_read_for_the_command_that_is_named(
    tmp_path: Path, algorithm: str | None, ours: str, train_on: str
) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    config = checked(import_config(str(tmp_path / "a.yaml"), algorithm=algorithm), tmp_path)
    assert (config.training.algorithm, config.data.train_on) == (ours, train_on)


EMBEDDING = "swift sft --model m --model_type qwen3_emb --dataset d --tuner_type full --task_type embedding"
RERANKER = "swift sft --model m --dataset d --tuner_type full --task_type reranker --template bert"
GRPO = "swift rlhf --rlhf_type grpo --model m --dataset d --reward_funcs accuracy --use_vllm true"


@pytest.mark.parametrize(
    ("text", "settings", "differs", "lost"),
    [
        (
            f"INFONCE_TEMPERATURE=0.02 {EMBEDDING} --loss_type infonce --per_device_train_batch_size 64"
            " --gradient_accumulation_steps 1 --sequence_parallel_size 4",
            {
                "training.algorithm": "embedding",
                "training.embedding.temperature": 0.02,
                "training.per_device_train_batch_size": 16,
            },
            set(),
            set(),
        ),
        (
            f"{EMBEDDING} --loss_type infonce --gradient_accumulation_steps 4",
            {"training.embedding.temperature": 0.1},
            {"loss_type"},
            set(),
        ),
        (f"{EMBEDDING} --loss_type contrastive", {}, set(), {"loss_type"}),
        (
            f"{RERANKER} --loss_type listwise_reranker --save_total_limit -1 --early_stop_interval 3",
            {"training.reranker.loss_type": "listwise", "training.early_stopping_patience": 3},
            {"loss_type"},
            set(),
        ),
        (
            f"{GRPO} --vllm_mode server --vllm_server_host 10.0.0.1 10.0.0.2 --vllm_server_port 8000 8001",
            {
                "training.rollout.servers": ["http://10.0.0.1:8000", "http://10.0.0.2:8001"],
                "training.rollout.rewards": [
                    {"name": "math_verify", "options": {"tag": "answer"}, "weight": 1.0}
                ],
                "data.train": [{"path": "d", "columns": {"answer": "solution"}}],
            },
            set(),
            set(),
        ),
        (
            (
                "swift rlhf --rlhf_type dpo --model m --max_length 9 --torch_dtype float32"
                " --dataset hjh0119/shareAI-Llama3-DPO-zh-en-emoji"
            ),
            {
                "data.train": [
                    {"path": "shareAI/DPO-zh-en-emoji", "replace": {"\N{VARIATION SELECTOR-16}": ""}}
                    | {"columns": {"prompt": "question", "chosen": "answer_zh", "rejected": "answer_en"}}
                ],
            },
            set(),
            set(),
        ),
        (
            "swift sft --model m --dataset d --enable_dft_loss true",
            {"training.sft.loss_type": "dft"},
            set(),
            set(),
        ),
    ],
)
def test_ms_swifts_other_trainings(
    text: str, settings: dict[str, object], differs: set[str], lost: set[str]
) -> None:
    found = import_command(read_command([text]))
    assert {path: found.settings[path].value for path in settings} == settings
    given = {f.key for f in found.findings.values() if f.line}
    assert {f.key for f in found.of(KeyVerdict.DIFFERS)} & given == differs
    assert {f.key for f in found.of(LOST)} == lost


def test_a_report_says_how_large_a_difference_was_measured() -> None:
    found = import_command(read_command(["swift sft --model m --dataset a#5 b#7"]))
    size = "2 of 4 rows differ, drawn of 8"
    assert f"here they are the first [measured: {size}]" in as_text(found)
    keys = {key["key"]: key for key in map(as_object, as_list(as_json(found, "")["keys"]))}
    assert keys["dataset"]["measured"] == size and "measured" not in keys["model"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("swift sft --model $NONE --dataset d\n", "NONE"),
        ("swift sft --model a --dataset d\nswift rlhf --model b --dataset d\n", "line 1, line 2"),
        ("echo hello\n", "no command"),
        ("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo\n", "a config or command of verl"),
        ("deepspeed --module openrlhf.cli.train_dpo --zero_stage 3\n", "a config or command of OpenRLHF"),
    ],
)
def test_scripts_that_cannot_be_read_are_refused(tmp_path: Path, text: str, names: str) -> None:
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_command([str(tmp_path / "run.sh")])
    assert names in caught.value.diagnostics[0].render()


@pytest.mark.parametrize(
    ("words", "system", "algorithm", "nproc"),
    [
        ("torchrun --nproc_per_node 4 src/train_bash.py --stage sft --do_train", "llamafactory", None, 4),
        ("deepspeed --num_gpus 2 src/train_bash.py --stage dpo", "llamafactory", None, 2),
        ("accelerate launch --config_file x.yaml --num_processes=8 sft.py --packing", "trl", "sft", 8),
        ("python -m axolotl.cli.train CONFIG --learning-rate 1e-3", "axolotl", None, None),
        ("torchrun --nproc_per_node=2 -m swift.cli.sft --model m", "swift", "sft", 2),
        ("python swift/cli/rlhf.py --model m --rlhf_type kto", "swift", "rlhf", None),
        ("trl dpo --config CONFIG --beta 0.2", "trl", "dpo", None),
        ("FORCE_TORCHRUN=1 llamafactory-cli train CONFIG learning_rate=1e-3", "llamafactory", None, None),
    ],
)
def test_command_lines_behind_launchers(
    tmp_path: Path, words: str, system: str, algorithm: str | None, nproc: int | None
) -> None:
    """A launcher's options do not swallow the program, and a config that is named lies below the flags."""
    config = tmp_path / "theirs.yaml"
    config.write_text("seed: 5\nlearning_rate: 2e-5\n")
    command = read_command(words.replace("CONFIG", str(config)).split())
    assert (command.system, command.algorithm) == (system, algorithm)
    found = import_command(command, algorithm="sft" if system == "trl" and algorithm is None else None)
    assert (found.settings["launch.nproc"].value if nproc else None) == nproc
    if "CONFIG" in words:
        rate = {"1e-3": 1e-3}.get(words[-4:], 2e-5)
        assert found.settings["training.seed"].value == 5
        assert found.settings["training.learning_rate"].value == rate


@pytest.mark.parametrize("system", ["trl", "swift", "llamafactory", "hf"])
@pytest.mark.parametrize("block", ["train", "rollout", "generation", "eval", "lora"])
def test_a_block_that_only_has_a_name_of_ours_takes_nothing_over(
    tmp_path: Path, system: str, block: str
) -> None:
    rows = {"trl": "dataset_name", "hf": "max_steps"}.get(system, "dataset")
    data: dict[str, Any] = {
        rows: 7 if system == "hf" else "rows.jsonl",
        block: {"temperature": 0.3, "path": "x"},
    }
    lines = {"model": 1, rows: 1, block: 2}
    found = import_data(data, lines, "a.yaml", system)
    config = checked(found, tmp_path)
    said = verdicts(found)
    assert {said[block], said[f"{block}.temperature"], said[f"{block}.path"]} == {LOST}
    assert said[rows] is not LOST and (system == "hf" or "rows.jsonl" in config.data.train[0].path)


def test_two_names_of_one_setting_are_not_both_kept(tmp_path: Path) -> None:
    data: dict[str, Any] = {"learning_rate": 1e-4, "lr": 5e-5}
    found = import_data(data, {"learning_rate": 1, "lr": 2}, "a.yaml", "hf")
    assert checked(found, tmp_path).training.learning_rate == 1e-4
    assert verdicts(found) == {"learning_rate": MAPPED, "lr": LOST}


NEOX = {
    "pipe_parallel_size": 1,
    "num_layers": 12,
    "hidden_size": 768,
    "data_path": "d",
    "train_iters": 9,
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1},
    "deepspeed": {"enabled": True},
    "optimizer": {"type": "Adam", "params": {"lr": 6e-4}},
}
LAMB = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "Lamb", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
    "sparse_attention": {"mode": "fixed"},
}


@pytest.mark.parametrize("indent", [None, 1])
def test_deepspeed_files_lose_what_they_lose(tmp_path: Path, indent: int | None) -> None:
    """GPT-NeoX's model, data and schedule are lost; LAMB takes its rate with it, not the rest of the file."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(NEOX, indent=indent))
    found = import_config(str(file))
    checked(found, tmp_path)
    own = {"pipe_parallel_size", "num_layers", "hidden_size", "data_path", "train_iters", "deepspeed"}
    assert {key for key, verdict in verdicts(found).items() if verdict is LOST} == own
    file.write_text(json.dumps(LAMB, indent=indent))
    found = import_config(str(file))
    config = checked(found, tmp_path)
    said = verdicts(found)
    assert {key for key, verdict in said.items() if verdict is LOST} == {"optimizer", "sparse_attention"}
    assert config.training.learning_rate == 5e-5 and config.training.mixed_precision == "bf16"
    assert config.training.deepspeed["zero_optimization"] == {"stage": 2}  # type: ignore[index,call-overload]
    assert "optimizer" not in config.training.deepspeed  # type: ignore[operator]


@pytest.mark.parametrize("version", [1, 2])
def test_accelerates_recomputation_is_said_once(tmp_path: Path, version: int) -> None:
    block = f"fsdp_version: {version}\n  fsdp_activation_checkpointing: true\n"
    file = tmp_path / "acc.yaml"
    file.write_text(
        f"compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n  {block}"
        "mixed_precision: bf16\nnum_processes: 2\n"
    )
    found = import_config(str(file))
    assert checked(found, tmp_path).training.gradient_checkpointing is True
    assert set(verdicts(found).values()) == {MAPPED, NOTHING}


def axolotl(**item: object) -> dict[str, Any]:
    row = {"path": "rows.jsonl", "type": "chat_template", **item}
    return {"base_model": "m", "datasets": [row], "sequence_len": 64}


@pytest.mark.parametrize(
    ("item", "verdict"),
    [
        ({"roles_to_train": ["assistant"]}, NOTHING),
        ({"roles_to_train": ["gpt"]}, NOTHING),
        ({"roles_to_train": ["assistant", "user"]}, LOST),
        ({"roles_to_train": []}, LOST),
        ({"train_on_eos": "turn"}, NOTHING),
        ({"train_on_eos": "all"}, LOST),
        ({"train_on_eot": "none"}, LOST),
        ({"drop_system_message": True}, LOST),
        ({"shards": 10}, LOST),
        ({"message_field_role": "from"}, MAPPED),
        ({"message_field_role": "speaker"}, LOST),
        ({"message_field_training": "training"}, MAPPED),
        ({"message_field_training": "learn"}, LOST),
        ({"message_property_mappings": {"role": "from", "content": "value"}}, MAPPED),
        ({"message_property_mappings": {"role": "who"}}, LOST),
        ({"roles": {"assistant": ["gpt"], "user": ["human"]}}, MAPPED),
        ({"roles": {"assistant": ["oracle"]}}, LOST),
    ],
)
def test_axolotls_keys_of_turns(tmp_path: Path, item: dict[str, Any], verdict: KeyVerdict) -> None:
    data = axolotl(**item)
    found = import_data(data, dict.fromkeys(data, 1), "a.yaml", "axolotl")
    checked(found, tmp_path)
    assert found.findings[f"datasets.0.{next(iter(item))}"].verdict is verdict
    assert (found.findings["datasets"].verdict is LOST) is (verdict is LOST)


@pytest.mark.parametrize(
    ("system", "data"),
    [
        ("axolotl", {**axolotl(), "context_parallel_size": 2, "flash_attention": True}),
        ("axolotl", {**axolotl(), "sequence_parallel_degree": 2, "attn_implementation": "flash_attention_2"}),
        ("swift", {"model": "m", "dataset": "d", "attn_impl": "flash_attn", "sequence_parallel_size": 2}),
    ],
)
def test_context_parallelism_is_accepted_by_our_own_rules(
    tmp_path: Path, system: str, data: dict[str, Any]
) -> None:
    found = import_data(data, dict.fromkeys(data, 1), "a.yaml", system)
    assert checked(found, tmp_path).training.parallelism.cp_size == 2
    assert NOTHING in {f.verdict for key, f in found.findings.items() if "att" in key}


@pytest.mark.parametrize(
    ("stage", "entry", "columns", "verdict"),
    [
        (
            "sft",
            {"formatting": "sharegpt", "columns": {"messages": "conversations", "system": "sp"}},
            {"system": "sp"},
            MAPPED,
        ),
        (
            "sft",
            {"columns": {"prompt": "q", "response": "a", "system": "sp"}},
            {"instruction": "q", "output": "a", "system": "sp"},
            MAPPED,
        ),
        (
            "dpo",
            {"ranking": True, "columns": {"prompt": "q", "chosen": "good", "rejected": "bad"}},
            {"prompt": "q", "chosen": "good", "rejected": "bad"},
            MAPPED,
        ),
        (
            "rm",
            {
                "ranking": True,
                "formatting": "sharegpt",
                "columns": {"messages": "talk", "chosen": "c", "rejected": "r"},
            },
            {"conversations": "talk", "chosen": "c", "rejected": "r"},
            MAPPED,
        ),
        (
            "sft",
            {"formatting": "sharegpt", "columns": {"messages": "conversations", "tools": "functions_of"}},
            {},
            LOST,
        ),
        ("sft", {"formatting": "sharegpt", "tags": {"user_tag": "client"}}, {}, LOST),
        (
            "sft",
            {
                "formatting": "sharegpt",
                "tags": {
                    "role_tag": "role",
                    "content_tag": "content",
                    "user_tag": "user",
                    "assistant_tag": "assistant",
                },
            },
            {"messages": "conversations"},
            MAPPED,
        ),
        ("sft", {"columns": {"prompt": "q", "images": "i"}}, {"instruction": "q", "images": "i"}, LOST),
        ("sft", {"num_samples": 10}, {}, DIFFERS),
        ("sft", {"folder": "en"}, {}, LOST),
        (
            "dpo",
            {"ranking": True, "columns": {"prompt": "q", "query": "more", "chosen": "c", "rejected": "r"}},
            {"prompt": "q", "chosen": "c", "rejected": "r"},
            LOST,
        ),
    ],
)
def test_llamafactorys_columns(
    tmp_path: Path, stage: str, entry: dict[str, Any], columns: dict[str, str], verdict: KeyVerdict
) -> None:
    names = {"file_name": "rows.json", **entry}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": names}))
    data = {
        "model_name_or_path": "m",
        "stage": stage,
        "dataset": "mine",
        "dataset_dir": str(tmp_path),
        "finetuning_type": "full",
    }
    found = import_data(data, dict.fromkeys(data, 1), "a.yaml", "llamafactory")
    config = checked(found, tmp_path)
    assert dict(config.data.train[0].columns) == columns
    assert found.findings["dataset"].verdict is verdict


@pytest.mark.parametrize(("drawn", "limit", "rows"), [(3, 6, 3), (6, 3, 3), (3, None, 3), (None, 6, 6)])
def test_the_smaller_limit_of_llamafactorys_rows_counts(
    tmp_path: Path, drawn: int | None, limit: int | None, rows: int
) -> None:
    names = {"file_name": "rows.json"} | ({"num_samples": drawn} if drawn else {})
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": names}))
    data: dict[str, Any] = {"stage": "sft", "dataset": "mine", "dataset_dir": str(tmp_path)}
    data |= {"max_samples": limit} if limit else {}
    found = import_data(data, dict.fromkeys(data, 1), "a.yaml", "llamafactory")
    assert found.settings["data.train"].value[0]["max_rows"] == rows


def test_a_system_column_that_llamafactory_passes_over_is_said(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([{"instruction": "q", "output": "a", "system": "s"}]))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": {"file_name": "rows.json"}}))
    data: dict[str, Any] = {"stage": "sft", "dataset": "mine", "dataset_dir": str(tmp_path)}
    found = import_data(data, dict.fromkeys(data, 1), "a.yaml", "llamafactory")
    assert found.findings["dataset"].verdict is DIFFERS


@pytest.mark.parametrize(
    ("more", "kwargs"),
    [  # by LLaMA-Factory 0.9.5's own create_custom_scheduler
        ({"max_steps": 100}, {"num_stable_steps": 33, "num_decay_steps": 67}),
        ({"max_steps": 100, "warmup_steps": 10}, {"num_stable_steps": 30, "num_decay_steps": 60}),
        ({"max_steps": 77, "warmup_ratio": 0.05}, {"num_stable_steps": 24, "num_decay_steps": 49}),
        ({"max_steps": 101, "warmup_steps": 0.1}, {"num_stable_steps": 30, "num_decay_steps": 60}),
        (
            {"max_steps": 50, "lr_scheduler_kwargs": {"num_decay_steps": 10}},
            {"num_decay_steps": 10, "num_stable_steps": 16},
        ),
        ({"num_train_epochs": 2}, None),
    ],
)
def test_llamafactorys_stable_third(
    tmp_path: Path, more: dict[str, Any], kwargs: dict[str, int] | None
) -> None:
    """Its default of warmup_stable_decay follows from the number of steps, where that is known."""
    given = {"model_name_or_path": "m", "stage": "sft", "dataset": "a", "template": "qwen", **more}
    given |= {"lr_scheduler_type": "warmup_stable_decay"}
    found = import_data(given, dict.fromkeys(given, 1), "a.yaml", "llamafactory")
    config = checked(found, tmp_path)
    if kwargs is None:
        assert "num_decay_steps" in found.findings["lr_scheduler_type"].says
        assert found.findings["lr_scheduler_type"].verdict is LOST
    else:
        assert config.training.lr_scheduler_type == "warmup_stable_decay"
        assert config.training.lr_scheduler_kwargs == kwargs


@pytest.mark.parametrize(
    ("more", "key", "verdict"),
    [
        ({"enable_thinking": False}, "enable_thinking", DIFFERS),
        ({"enable_thinking": True}, "enable_thinking", MAPPED),
        ({"preserve_thinking": True}, "preserve_thinking", NOTHING),
        ({"stage": "dpo", "preserve_thinking": True}, "preserve_thinking", MAPPED),
        ({"stage": "dpo", "preserve_thinking": False}, "preserve_thinking", DIFFERS),
        ({"mask_history": True, "preserve_thinking": False}, "preserve_thinking", DIFFERS),
        ({"template": "qwen", "enable_thinking": False}, "enable_thinking", NOTHING),
    ],
)
def test_thoughts_that_llamafactory_takes_out_are_said(
    tmp_path: Path, more: dict[str, Any], key: str, verdict: KeyVerdict
) -> None:
    given = {"model_name_or_path": "m", "stage": "sft", "dataset": "a", "template": "qwen3", **more}
    found = import_data(given, dict.fromkeys(given, 1), "a.yaml", "llamafactory")
    checked(found, tmp_path)
    assert found.findings[key].verdict is verdict


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"sample_packing_sequentially": True}, "sample_packing_sequentially"),
        ({"lr_quadratic_warmup": True, "lr_scheduler": "cosine"}, "lr_quadratic_warmup"),
        ({"min_sample_len": 5}, "min_sample_len"),
        ({"adapter": "lora", "load_in_8bit": True}, "load_in_8bit"),
        ({"adapter": "lora", "gptq": True}, "gptq"),
        ({"optimizer": "adamw_bnb_8bit", "deepspeed": "ds.json"}, "optimizer"),
        ({"model_config": {"output_router_logits": True}}, "model_config.output_router_logits"),
        ({"chat_template": "gemma3", "eot_tokens": ["<end_of_turn>"]}, "chat_template"),
        ({"rl": "dpo", "datasets": [{"path": "a/b", "type": "chatml.intel"}]}, "datasets"),
    ],
)
def test_axolotl_keys_are_kept_with_a_named_difference(more: dict[str, Any], key: str) -> None:
    given = {"base_model": "base", **more}
    found = import_data(given, dict.fromkeys(flat(given), 1), "a.yaml", "axolotl")
    assert found.findings[key].verdict is DIFFERS and found.findings[key].says
    assert not found.of(KeyVerdict.LOST)


def test_axolotl_s_files_of_a_data_set_are_data_sets() -> None:
    files = [{"path": "json", "data_files": ["a.json", "b.json"], "type": "completion"}]
    files += [{"path": "org/name", "data_files": "c/d.jsonl.zst", "type": "completion"}]
    given = {"base_model": "base", "datasets": files, "special_tokens": {"bos_token": "<s>"}, "tpyo": 1}
    found = import_data(given, dict.fromkeys(flat(given), 1), "a.yaml", "axolotl")
    paths = [one["path"] for one in found.settings["data.train"].value]  # type: ignore[index,union-attr,call-overload]
    assert paths == ["a.json", "b.json", "hf://datasets/org/name/c/d.jsonl.zst"]
    assert found.settings["model.special_tokens"].value == {"bos_token": "<s>"}
    assert found.findings["tpyo"].verdict is NOTHING and not found.of(KeyVerdict.LOST)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"dataset_shard_num": 4, "dataset_shard_idx": 0}, "dataset_shard_num"),
        ({"eval_sequence_len": 64}, "eval_sequence_len"),
        ({"fix_untrained_tokens": True}, "fix_untrained_tokens"),
        ({"rl": "grpo", "trl": {"min_p": 0.1}}, "trl.min_p"),
    ],
)
def test_axolotl_keys_that_change_the_training_are_lost_by_name(more: dict[str, Any], key: str) -> None:
    """They were of no effect, or took over the verdict of the block that they stand in."""
    given = {"base_model": "m", "datasets": [{"path": "a.jsonl", "type": "completion"}], **more}
    found = import_data(given, dict.fromkeys(flat(given), 1), "a.yaml", "axolotl")
    assert found.findings[key].verdict is LOST


@pytest.mark.parametrize("trainer", ["DPO", "KTO", "Reward", "GRPO", "RLOO", "SFT"])
def test_dropout_is_off_where_trl_switches_it_off(trainer: str) -> None:
    theirs = table("trl")["classes"][f"{trainer}Config"].get("disable_dropout", False)
    assert algorithm_spec(trainer.lower()).disable_dropout is theirs


@pytest.mark.parametrize(("stage", "disables"), [("rm", False), ("dpo", None), ("kto", None)])
def test_llamafactorys_reward_trainer_alone_keeps_dropout(
    tmp_path: Path, stage: str, disables: bool | None
) -> None:
    """Its trainers of DPO and KTO call ``disable_dropout_in_model``."""
    data = {"model_name_or_path": "m", "stage": stage, "dataset": "d", "finetuning_type": "lora"}
    found = import_data(data, dict.fromkeys(data, 1), "a.yaml", "llamafactory")
    assert checked(found, tmp_path).training.disable_dropout is disables


TRL_DPO = {"model_name_or_path": "m", "max_length": 48}
TRL_LOSES = "loses its end here, where TRL cuts its start: write data.on_too_long: skip"


@pytest.mark.parametrize(
    ("system", "given", "key", "value", "says"),
    [
        ("trl", TRL_DPO, "truncation_mode", "keep_end", TRL_LOSES),
        ("swift", {"model": "m", "dataset": "a.jsonl"}, "padding_side", "left", "the run goes without it"),
    ],
)
def test_a_loss_says_what_happens(
    system: str, given: dict[str, Any], key: str, value: str, says: str
) -> None:
    algorithm = "dpo" if system == "trl" else None
    found = import_data(given | {key: value}, {}, "dpo.yaml", system, algorithm).findings[key]
    assert found.verdict is LOST and says in found.says


@pytest.mark.parametrize(
    ("conversation", "top", "verdict", "ours"),
    [
        ("chatml", {}, MAPPED, "chatml"),
        ("llama-3", {}, MAPPED, "llama3"),
        ("chatml", {"chat_template": "chatml"}, MAPPED, "chatml"),
        ("chatml", {"chat_template": "llama3"}, LOST, "llama3"),
        ("vicuna_v1.1", {}, LOST, None),
    ],
)
def test_the_conversation_of_an_older_axolotl_set_is_a_chat_template(
    conversation: str, top: dict[str, Any], verdict: KeyVerdict, ours: str | None
) -> None:
    rows = {"path": "rows.jsonl", "type": "sharegpt", "conversation": conversation}
    data = {"base_model": "m", "datasets": [rows], **top}
    imported = import_data(data, dict.fromkeys(data, 1), "a.yaml", "axolotl")
    assert imported.findings["datasets.0.conversation"].verdict is verdict
    setting = imported.settings.get("model.chat_template")
    assert (setting.value if setting else None) == ours


def test_attention_across_packed_documents_is_not_kept() -> None:
    data = {"base_model": "m", "pretraining_dataset": "rows.jsonl", "pretrain_multipack_attn": False}
    imported = import_data(data, dict.fromkeys(data, 1), "a.yaml", "axolotl")
    assert imported.findings["pretrain_multipack_attn"].verdict is LOST


def test_a_value_that_our_rules_refuse_cannot_be_kept() -> None:
    given = {"model_name_or_path": "base", "stage": "sft", "quantization_bit": 8, "finetuning_type": "lora"}
    found = import_data(given, dict.fromkeys(given, 1), "a.yaml", "llamafactory")
    made, problems = accepted(found, "test", of_config)
    assert found.findings["quantization_bit"].verdict is KeyVerdict.LOST and problems == []
    assert (
        "quantization_bit:" not in made.text.partition("# cannot be kept")[0]
        and "model.dtype" not in made.text
    )


@pytest.mark.parametrize(
    ("on", "loss"),
    [
        (["use_dft_loss", "use_eaft_loss"], "dft"),
        (["use_eaft_loss"], "eaft"),
        (["use_dft_loss", "use_asft_loss"], "dft"),
        (["use_eaft_loss", "use_asft_loss"], "eaft"),
    ],
)
def test_of_several_losses_llama_factorys_first_is_kept(tmp_path: Path, on: list[str], loss: str) -> None:
    """dft before eaft (its trainer's order); asft's reference breaks the others there."""
    path = tmp_path / "job.yaml"
    lines = ["model_name_or_path: m", "stage: sft", "dataset: d", "template: qwen", "finetuning_type: full"]
    path.write_text("\n".join([*lines, *(f"{name}: true" for name in on)]))
    (tmp_path / "data").mkdir()
    found = import_config(str(path), "llamafactory")
    assert checked(found, tmp_path).training.sft.loss_type == loss  # type: ignore[union-attr]
    said = {name: found.findings[name] for name in on[1:]}
    assert all(f.verdict is (LOST if name == "use_asft_loss" else NOTHING) for name, f in said.items())
    assert not any("stage" in f.says for f in said.values())


def test_axolotls_entropy_weights_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "axolotl.yml"
    path.write_text(
        "base_model: m\ndatasets: [{path: d.json, type: alpaca}]\nuse_eaft: true\neaft_alpha: 0.5\n"
    )
    found = import_config(str(path), "axolotl")
    sft = checked(found, tmp_path).training.sft
    assert sft is not None and (sft.loss_type, sft.eaft_alpha) == ("eaft", 0.5)
    assert verdicts(found)["use_eaft"] is DIFFERS
