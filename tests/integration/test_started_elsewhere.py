"""A run whose config has relative paths, read in another folder than the one it was started in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Run, write_yaml
from test_lora import logits, save_base

from paceline.checkpoint.export.hf_export import export_hf
from paceline.checkpoint.format.verify_files import read_state
from paceline.checkpoint.load.start_folder import START_FOLDER, is_file_of_run, model_of_run, path_of_run
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.rundir import RunDir
from paceline.evaluation.open_run import export_copy, opened
from paceline.models.loading.model_source import cannot_load, weights_folder

pytestmark = [pytest.mark.integration]
pytest.importorskip("peft")


def test_every_reader_of_a_run_finds_its_base_from_another_folder(
    tiny: Callable[..., dict[str, Any]],
    paceline: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    start, elsewhere = tmp_path / "start", tmp_path / "elsewhere"
    start.mkdir()
    elsewhere.mkdir()
    made = tiny(output_dir=str(tmp_path / "runs" / "one"), save_strategy="steps", save_steps=2, max_steps=2)
    shutil.copytree(made["model"]["tokenizer"], start / "tok")
    save_base(start / "base", made["model"]["config"], seed=3)
    config = {**made, "model": {"name_or_path": "./base", "tokenizer": "./tok"}, "lora": {"r": 4}}
    done = paceline("train", str(write_yaml(start / "c.yaml", config)), "--nproc", "1", cwd=start)
    assert done.code == 0, done.err
    run = RunDir.at(tmp_path / "runs" / "one")
    checkpoint = run.checkpoint(2)

    monkeypatch.chdir(elsewhere)
    export_hf(checkpoint, elsewhere / "merged", merge=True)
    export_hf(checkpoint, elsewhere / "adapter")
    base: Any = AutoModelForCausalLM.from_pretrained(start / "base")
    want = logits(PeftModel.from_pretrained(base, elsewhere / "adapter"))
    merged: Any = AutoModelForCausalLM.from_pretrained(elsewhere / "merged")
    torch.testing.assert_close(logits(merged), want, rtol=0, atol=1e-5)
    torch.testing.assert_close(logits(opened(run.root)[0]), want, rtol=0, atol=1e-5)  # chat, generate, serve
    assert model_of_run(read_state(checkpoint), checkpoint).tokenizer == str(start / "tok")
    with pytest.raises(ConfigError, match="the export reads"):  # the base would be replaced
        export_hf(checkpoint, start / "base", merge=True, overwrite=True)

    shutil.rmtree(start / "base")
    with pytest.raises(CheckpointError) as missing:
        export_hf(checkpoint, elsewhere / "again", merge=True)
    (said,) = missing.value.diagnostics
    assert said.code == "checkpoint.path_missing" and said.where == "model.name_or_path"
    assert f"./base: not in {start} (the run was started there)" in said.found, said.found
    with pytest.raises(ConfigError, match=r"checkpoint\.path_missing"):
        export_copy(run.root, elsewhere / "copied")


def test_a_relative_path_is_looked_for_where_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, here = tmp_path / "project", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    checkpoint = project / "out" / "a" / "checkpoints" / "step-00000002"
    older: dict[str, Any] = {"config": {"training": {"output_dir": "./out/a"}}}

    def path(name: str, state: dict[str, Any]) -> str:
        return path_of_run(name, state, checkpoint, "model.name_or_path")

    for name in ("./base", "../base", "models/org/base", str(tmp_path / "gone"), "~/nowhere-at-all"):
        with pytest.raises(CheckpointError, match=r"checkpoint\.path_missing"):
            path(name, older)
    with pytest.raises(CheckpointError) as missing:
        path("./base", older)
    assert str(project) in missing.value.diagnostics[0].found and str(here) in str(missing.value)
    assert path("org/base", older) == "org/base" and not is_file_of_run("org/base", older, checkpoint)

    (project / "org" / "base").mkdir(parents=True)
    assert path("org/base", older) == str(project / "org" / "base")
    assert is_file_of_run("org/base", older, checkpoint)
    moved = {**older, START_FOLDER: str(tmp_path / "as it was")}  # the whole project lies elsewhere now
    assert path("./org/base", moved) == str(project / "org" / "base")
    (tmp_path / "as it was" / "org" / "base").mkdir(parents=True)
    assert path("org/base", moved) == str(tmp_path / "as it was" / "org" / "base")
    assert path("org/base", json.loads("{}")) == "org/base"
    (here / "org" / "base").mkdir(parents=True)
    assert path("./org/base", {}) == "./org/base"


@pytest.mark.parametrize("name", ["./base", "/nowhere/base", "models/org/base", "~/base"])
def test_a_path_is_never_asked_of_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = cannot_load(name, ValueError("Repo id must use alphanumeric chars"))
    assert said.what == "there is no such folder" and "Repo id" not in said.found
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        weights_folder(name, None)


def test_a_hub_s_name_is_no_run_of_that_name_beside_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, runs = tmp_path / "here", tmp_path / "runs"
    (runs / "gpt2").mkdir(parents=True)  # another run, named after its model
    here.mkdir()
    monkeypatch.chdir(here)
    checkpoint = runs / "mine" / "checkpoints" / "step-00000002"
    state: dict[str, Any] = {"config": {"training": {"output_dir": str(runs / "mine")}}}
    assert path_of_run("gpt2", state, checkpoint, "model.name_or_path") == "gpt2"
    assert not is_file_of_run("gpt2", state, checkpoint)
    assert path_of_run("./gpt2", state, checkpoint, "model.name_or_path") == str(runs / "gpt2")
