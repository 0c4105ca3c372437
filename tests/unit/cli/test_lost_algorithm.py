"""An import whose algorithm cannot be kept: exit code 1, and the YAML names it in a comment."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from paceline.cli.main import application_of

AXOLOTL = "base_model: m\ndatasets: [{path: d.jsonl, type: chat_template}]\n"
FACTORY = "model_name_or_path: m\nfinetuning_type: full\ndataset: d\ntemplate: qwen\n"


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (f"{AXOLOTL}rl: ebft\n", "rl", "ebft"),
        (f"{AXOLOTL}rl: dpo\n", "", ""),
        (f"{FACTORY}stage: other\n", "stage", "other"),
        ("swift rlhf --rlhf_type gkdx --model m --dataset d.jsonl", "rlhf_type", "gkdx"),
        (
            "swift sft --task_type generative_reranker --model m --dataset d.jsonl",
            "task_type",
            "generative_reranker",
        ),
        ("swift sft --model m --dataset d.jsonl", "", ""),
    ],
)
def test_it_is_not_trained_as_another_one_without_a_word(
    tmp_path: Path, given: str, key: str, value: str
) -> None:
    file, to = tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
    if "\n" in given:
        file.write_text(given)
        given = str(file)
    ended = CliRunner().invoke(application_of("config"), ["import", given, "--to", str(to)])
    text = to.read_text()
    assert ended.exit_code == (1 if key else 0), ended.output
    assert ("cli.algorithm_lost" in ended.output) is bool(key)
    if key:
        assert f"# algorithm: {value}  # {key}" in text and f"{key}: {value}" in ended.output
        assert "algorithm" not in (yaml.safe_load(text).get("training") or {})
