"""What ships beside the package: example configs, their data, DeepSpeed files, constraints, scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from paceline.config.load import load_config

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = (
    "config.yaml",
    "config_distributed_example.yaml",
    "config_deepspeed_example.yaml",
    "config_deepspeed.yaml",
)


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("name", CONFIGS)
def test_an_example_loads_and_its_files_are_there(name: str) -> None:
    config = load_config(name).config
    assert config.training.ddp_backend == "auto" and config.training.mixed_precision == "auto"
    assert config.model.tokenizer is not None and (ROOT / config.model.tokenizer / "tokenizer.json").is_file()
    assert config.data.eval
    for dataset in (*config.data.train, *config.data.eval):
        assert (ROOT / dataset.path).is_file()


def test_the_example_data_is_what_its_program_makes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "make_examples.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout


def test_no_held_out_question_is_trained_on() -> None:
    train = {
        f"{r['instruction']}\n{r['input']}".strip()
        for r in json.loads((ROOT / "examples/data/train.json").read_text())
    }
    held_out = [
        json.loads(line)["messages"][0]["content"]
        for line in (ROOT / "examples/data/eval.jsonl").read_text().splitlines()
    ]
    assert len(train) == 400 and len(held_out) == 40
    assert not train & set(held_out)


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "zero2_with_profiling"])
def test_deepspeed_files_hold_for_any_number_of_processes(name: str) -> None:
    config = json.loads((ROOT / "configs" / "deepspeed" / f"{name}.json").read_text())
    assert config["train_batch_size"] == "auto"
    assert config["zero_optimization"]["stage"] == int(name[4])


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["test"], *extras["wandb"], *extras["accelerate"]]
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    pins = dict(line.split("==") for line in lines)
    names = {normal(re.split(r"[<>=!~\[ ]", text)[0]) for text in wanted}
    assert names <= {normal(name) for name in pins}
    assert not [version for version in pins.values() if "+" in version], (
        "a local version cannot be had from the package index"
    )


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("script", ["scripts/setup", "scripts/check", "scripts/test", ".ci/run"])
def test_scripts_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True, timeout=30)


def test_make_test_is_what_ci_runs() -> None:
    assert "\ntest:\n\t@.ci/run\n" in (ROOT / "Makefile").read_text()
