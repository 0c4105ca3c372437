"""Configs of other training programs given as the config: one sentence; files of Transformers' names keep
what is read of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.config.load import load_config
from paceline.core.errors import ConfigError

OTHERS = {
    "axolotl": (
        "base_model: NousResearch/Llama-3.2-1B\ndatasets:\n  - path: teknium/GPT4\n    type:"
        " alpaca\nsequence_len: 2048\nmicro_batch_size: 2\nspecial_tokens: {pad_token: <|end_of_text|>}\n"
    ),
    "torchtune": (
        "output_dir: /tmp/x\nmodel:\n  _component_: torchtune.models.llama3_2.llama3_2_1b\noptimizer:"
        " {_component_: torch.optim.AdamW, lr: 2e-5}\n"
    ),
    "verl": (
        "actor_rollout_ref:\n  model: {path: Qwen/Qwen2.5-0.5B}\ndata: {train_files:"
        " gsm8k.parquet}\nalgorithm: {adv_estimator: grpo}\n"
    ),
    "OpenRLHF": "pretrain: meta-llama/Llama-3-8B\nmicro_train_batch_size: 2\nmax_len: 2048\nzero_stage: 3\n",
    "llm-foundry": (
        "max_seq_len: 2048\nmodel: {name: hf_causal_lm, pretrained_model_name_or_path: gpt2}\ntrain_loader:"
        " {name: finetuning}\nmax_duration: 1ep\n"
    ),
    "trlX": "train: {seq_length: 48}\nmodel: {model_path: gpt2}\nmethod: {name: PPOConfig}\n",
    "ArcticTraining": (
        "type: sft\nmodel: {name_or_path: gpt2}\ndata: {sources: [HuggingFaceH4/ultrachat_200k]}\n"
    ),
}
KIN = {
    "LLaMA-Factory": (
        "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: lora\ncutoff_len: 128\nuse_kt:"
        " true\ngalore_rank: 4\n"
    ),
    "TRL": "model_name_or_path: gpt2\ndataset_train_split: train\nuse_peft: true\nlearning_rate: 1e-4\n",
    "ms-swift": "train_type: lora\nmodel_type: qwen\nlearning_rate: 1e-4\n",
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_structure_gets_one_sentence(refuse: Callable[..., Any], name: str) -> None:
    (found,) = refuse(OTHERS[name]).diagnostics
    assert found.code == "config.other_program" and f"a config of {name}," in found.what
    imports = name == "axolotl"  # the line that imports it, else how ours is written
    assert found.where.endswith("config.yaml:1") and ("docs/how-to/configure.md" in found.hint) is not imports
    assert (found.hint.startswith("paceline config import ") and "--to ours.yaml" in found.hint) is imports


def test_the_sentence_says_how_ours_would_begin(refuse: Callable[..., Any]) -> None:
    (found,) = refuse(OTHERS["OpenRLHF"]).diagnostics
    assert "model.name_or_path: meta-llama/Llama-3-8B, data.max_length: 2048" in found.hint


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("run.sh", "trl sft --packing true\n", "paceline config import {} --to ours.yaml"),
        ("train.py", "import trl\n", "paceline config import {} --to ours.yaml"),
        ("job.yaml", "apiVersion: v1\nkind: Job\n---\na: 1\n", "paceline migrate {} --to ours"),
        ("Makefile", "x:\n\ttrl sft\n", "paceline migrate {} --to ours"),
        ("launch", "#!/usr/bin/env bash\ntrl sft\n", "paceline migrate {} --to ours"),
        ("", "", "paceline migrate {} --to ours"),
        ("trl sft --packing true", "", "paceline config import 'trl sft --packing true' --to ours.yaml"),
        ("ds.json", '{"zero_optimization": {"stage": 2}}', "paceline config import {} --to ours.yaml"),
    ],
)
def test_what_starts_another_program_is_answered_by_the_line_that_imports_it(
    tmp_path: Path, name: str, text: str, line: str
) -> None:
    file = tmp_path / name if text or not name else Path(name)
    if text:
        file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(str(file))
    (found,) = refused.value.diagnostics
    assert line.format(file) in found.hint, found.render()


@pytest.mark.parametrize(
    ("name", "text", "program"),
    [
        ("a.yaml", "stage: sft\ncutoff_len: 8\nmodel_name_or_path: m\n", "LLaMA-Factory"),
        ("a.yaml", "model_name_or_path: m\ndataset_name: rows.jsonl\n", "TRL"),
        ("a.json", '{"output_dir": "o", "learning_rate": 1e-4, "num_train_epochs": 1}', "Transformers"),
    ],
)
def test_a_kindred_file_that_is_read_names_the_import_first(
    tmp_path: Path, name: str, text: str, program: str
) -> None:
    (tmp_path / name).write_text(text)
    first, *rest = load_config(str(tmp_path / name)).notes
    assert f"a config of {program}, read with" in first.what and "paceline config import" in first.hint
    assert not any(note.hint == "remove the line" for note in rest)


@pytest.mark.parametrize("name", KIN)
def test_unknown_keys_of_a_kindred_file_are_one_sentence(refuse: Callable[..., Any], name: str) -> None:
    found = refuse(KIN[name]).diagnostics
    sentences = [d for d in found if d.code == "config.other_program"]
    assert len(sentences) == 1 and f"a config of {name};" in sentences[0].what
    assert not [d for d in found if d.code == "config.unknown_key"]


def test_what_is_read_stays_read_and_a_slip_keeps_its_suggestion(
    load: Any, refuse: Callable[..., Any]
) -> None:
    read = (
        "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: lora\nlora_rank: 4\ncutoff_len:"
        " 128\ntemplate: qwen\n"
    )
    loaded = load(read)
    assert (loaded.config.lora.r, loaded.config.data.max_length) == (4, 128)
    (found,) = refuse(read + "learning_rat: 1e-4\n").diagnostics
    assert "did you mean 'learning_rate'?" in found.found


def test_our_own_typos_stay_one_by_one(refuse: Callable[..., Any]) -> None:
    found = refuse("training:\n  learning_rat: 1\n  max_stepz: 2\n").diagnostics
    assert [d.code for d in found] == ["config.unknown_key"] * 2


@pytest.mark.parametrize(
    "text",
    [
        '{"autotuning": {"enabled": true}}',
        '{"tensor_parallel": {"autotp_size": 2}}',
        '{"bf16": {"enabled": true}}',
    ],
)
def test_any_piece_of_deepspeeds_json_is_known_for_one(refuse: Callable[..., Any], text: str) -> None:
    (found,) = refuse(text).diagnostics
    assert found.code == "config.foreign_as_config" and "deepspeed: " in found.hint
