"""LLaMA-Factory's command lines on main.py."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from paceline.cli.compat import are_llamafactory, from_llamafactory
from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.rules import of_config

FLAGS = shlex.split(
    "--stage sft --do_train --model_name_or_path m --dataset rows --dataset_dir . --template empty"
    " --finetuning_type lora --lora_target q_proj,v_proj --output_dir out --per_device_train_batch_size 4"
    " --lr_scheduler_type cosine --learning_rate 1e-4 --max_steps 3 --plot_loss --bf16"
)


def flags(tmp_path: Path, *more: str, given: list[str] = FLAGS, rank: str = "0"):
    environ = {"PACELINE_CACHE": str(tmp_path / "cache"), "LOCAL_RANK": rank}
    return from_llamafactory([*given, *more], environ)


def refused(tmp_path: Path, *more: str, given: list[str] = FLAGS):
    with pytest.raises(ConfigError) as caught:
        flags(tmp_path, *more, given=given)
    assert not (tmp_path / "cache").exists()
    return caught.value.diagnostics


def test_the_flags_become_a_config(tmp_path, capsys):
    found = flags(tmp_path, "training.seed=7", "--local_rank=0")
    assert (found.overrides, found.local_rank) == (("training.seed=7",), 0)
    config = load_config(str(found.config), found.overrides, {}, {}, of_config).config
    training, lora = config.training, config.lora
    assert (training.algorithm, training.max_steps, training.learning_rate) == ("sft", 3, 1e-4)
    assert (training.seed, training.mixed_precision, training.output_dir) == (7, "bf16", "out")
    assert (lora.r, lora.alpha, lora.target_modules) == (8, 16, ("q_proj", "v_proj"))
    assert config.data.packing is False  # LLaMA-Factory's default, not ours
    said = capsys.readouterr().err
    assert "15 keys of LLaMA-Factory" in said and str(found.config) in said


def test_each_rank_reads_the_same_file_and_one_speaks(tmp_path, capsys):
    first, second = flags(tmp_path), flags(tmp_path, rank="1")
    assert first.config == second.config
    assert [file.name for file in first.config.parent.iterdir()] == [first.config.name]
    assert capsys.readouterr().err.count("as a config:") == 1


def test_what_cannot_be_kept_is_refused_all_at_once(tmp_path):
    found = refused(tmp_path, "--use_galore", "--nonsense", "3")
    assert [item.code for item in found] == ["cli.flag_not_kept"] * 2
    assert {item.found for item in found} == {"--use_galore true", "--nonsense 3"}
    words = ["main.py", *FLAGS, "--use_galore", "--nonsense"]
    places = {item.found.split()[0]: item.where for item in found}
    assert places == {
        flag: f"main.py, argument {words.index(flag)}" for flag in ("--use_galore", "--nonsense")
    }


def test_what_differs_is_said_and_runs(tmp_path, capsys):
    flags(tmp_path, "--packing", "true")
    said = capsys.readouterr().err
    assert "differs:\n  command line:" in said and "packing: true" in said


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([word for word in FLAGS if word != "--do_train"], "no --do_train"),
        (["--do_predict" if word == "--do_train" else word for word in FLAGS], "--do_predict"),
        (["--do_train=false" if word == "--do_train" else word for word in FLAGS], "--do_train"),
    ],
)
def test_without_training_there_is_nothing_to_do(tmp_path, given, found):
    (finding,) = refused(tmp_path, given=given)
    assert (finding.code, finding.found) == ("cli.mode", found)


def test_two_command_lines_in_one_are_refused(tmp_path):
    (finding,) = refused(tmp_path, "--config", "ours.yaml")
    assert finding.code == "cli.two_command_lines"
    assert finding.found == "--config, --stage, --do_train, --model_name_or_path"


def test_our_own_flags_are_not_theirs():
    assert are_llamafactory(FLAGS) and are_llamafactory(["--stage=sft"])
    ours = shlex.split("--config config.yaml --mode train --algorithm sft model.name_or_path=m")
    assert not are_llamafactory(ours)
