"""Commands and files of other programs that do not train: each is told which command here does its job."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from paceline.cli.main import application_of
from paceline.config.import_export.commands.command_line import is_command, read_command
from paceline.config.import_export.commands.other_jobs import known_jobs
from paceline.config.import_export.import_config import import_command, import_config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError

MERGE = "paceline export saves/lora --merge --model base --to merged"
YAML = "model_name_or_path: base\nadapter_name_or_path: saves/lora\ntemplate: qwen\nexport_dir: merged\n"
AXOLOTL = (
    "base_model: base\ndatasets:\n  - path: rows.jsonl\n    type: alpaca\nadapter: lora\noutput_dir: out\n"
)
COMMANDS = {
    "swift export --model base --adapters saves/lora --merge_lora true --output_dir merged": MERGE,
    "swift export --adapters=saves/lora --merge_lora": "paceline export saves/lora --merge --to DIR",
    "python swift/cli/export.py --model base --ckpt_dir saves/lora --output_dir merged": MERGE,
    "llamafactory-cli export export.yaml": MERGE,
    "llamafactory-cli export export.yaml export_dir=m": MERGE.replace("merged", "m"),
    "lmf export --model_name_or_path base --adapter_name_or_path saves/lora --export_dir merged": MERGE,
    "axolotl merge-lora ax.yaml": "paceline export out --merge --model base --to out/merged",
    "axolotl merge-lora ax.yaml --lora-model-dir saves/lora": "export saves/lora --merge --model base",
    "python -m axolotl.cli.merge_lora ax.yaml": "paceline export out --merge --model base --to out/merged",
    "accelerate launch -m axolotl.cli.evaluate ax.yaml": "paceline evaluate out --data rows.jsonl",
    "axolotl inference ax.yaml": "paceline chat out",
    "axolotl preprocess ax.yaml": "config import ax.yaml --to ours.yaml && paceline prepare ours.yaml",
    "swift infer --adapters saves/lora": "paceline chat saves/lora",
    "swift infer --model base --val_dataset a.jsonl --result_path o.jsonl": (
        "paceline generate base --data a.jsonl --to o.jsonl"
    ),
    "CUDA_VISIBLE_DEVICES=0 swift deploy --model base --port 8000": "paceline serve base --port 8000",
    "swift eval --model base --eval_dataset gsm8k": "paceline evaluate base --lm-eval gsm8k",
    "swift rollout --model base": "training.rollout",
    "llamafactory-cli chat export.yaml": f"{MERGE} && paceline chat merged",
    "llamafactory-cli api --model_name_or_path base": "paceline serve base",
    "llamafactory-cli eval --model_name_or_path base --task mmlu_test": "evaluate base --lm-eval mmlu_test",
    "llamafactory-cli webui": "paceline config init FILE",
    "axolotl vllm-serve ax.yaml": "training.rollout",
    "trl vllm-serve --model base": "training.rollout",
    "trl chat --model_name_or_path base": "paceline chat base",
    "vllm serve base --port 8000": "paceline serve base --port 8000",
    "python -m vllm.entrypoints.openai.api_server --model base": "paceline serve base",
    "swift export --model base --quant_bits 4 --quant_method gptq": "no command here does that",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "export.yaml").write_text(YAML)
    (tmp_path / "ax.yaml").write_text(AXOLOTL)
    monkeypatch.chdir(tmp_path)


def refusal(*arguments: str) -> Diagnostic:
    with pytest.raises(ConfigError) as refused:
        import_command(read_command(arguments))
    (said,) = refused.value.diagnostics
    return said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_told_what_does_its_job_here(command: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash\nset -e\n\n" + command.replace(" --", " \\\n  --") + "\n")
    assert is_command(command)
    for arguments in ([command], shlex.split(command), ["run.sh"]):
        said = refusal(*arguments)
        assert said.what.startswith("this command does not train: "), said
        assert COMMANDS[command] in said.hint, said
    assert said.where == "run.sh:4"


def test_of_a_script_that_trains_and_merges_the_training_is_imported(tmp_path: Path) -> None:
    train = "swift sft --model base --dataset a.jsonl --output_dir out\n"
    (tmp_path / "run.sh").write_text(f"{train}swift export --adapters out/checkpoint-1 --merge_lora true\n")
    assert import_command(read_command(["run.sh"])).settings["model.name_or_path"].value == "base"


FILES = {
    YAML: MERGE,
    f"### export\n{YAML}export_size: 2\nexport_device: cpu\nexport_legacy_format: false\n": MERGE,
    f"{YAML}export_quantization_bit: 4\n": "no command here does that",
    "model_name_or_path: base\ntemplate: qwen\ninfer_backend: huggingface\n": "paceline serve base",
    "model_name_or_path: base\ntask: mmlu_test\ntemplate: fewshot\nlang: en\n": "--lm-eval mmlu_test",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_of_another_job_is_no_training(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        import_config("x.yaml")
    (said,) = refused.value.diagnostics
    assert (
        said.what.startswith("this file is of a command that does not train: ") and FILES[text] in said.hint
    )
    (tmp_path / "x.yaml").write_text(f"stage: sft\ndo_train: true\ndataset: alpaca_en_demo\n{text}")
    assert import_config("x.yaml").settings["training.algorithm"].value == "sft"


def test_an_unknown_template_gets_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "stage: sft\nmodel_name_or_path: base\ndataset: alpaca_en_demo\ntemplate: qwen2\nlora_rank: 8\n"
    )
    assert "no template qwen2: did you mean 'qwen'?" in import_config("x.yaml").findings["template"].says


def test_every_command_of_the_table_is_one_of_ours() -> None:
    """Its verb, its options and its arguments are what the command line takes."""
    uses = [
        use
        for job in known_jobs()
        if job.use
        for use in job.remedy({"port": "8000", "model": "base"}).split("`")[1].split(" && ")
    ]
    assert len(uses) > 20
    for use in uses:
        name, verb, *words = shlex.split(use)
        command = typer.main.get_command(application_of(verb))
        if isinstance(command, TyperGroup):
            command, words = command.commands[words[0]], words[1:]
        assert name == "paceline" and command.make_context(verb, words), use


def test_every_row_says_what_to_do() -> None:
    assert all(job.starts and job.says and job.remedy({}) for job in known_jobs())
