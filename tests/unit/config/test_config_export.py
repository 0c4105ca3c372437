"""`paceline config export`: what is written imports to the same config, or is listed as not kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.config.import_export.targets.export_config import export_config, export_text
from paceline.config.import_export.targets.names import NAMES
from paceline.config.load import Loaded, load_config
from paceline.core.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[2] / "peers"))
import exports  # noqa: E402

RECORDED = exports.RECORDED
SFT = """model: {name_or_path: some/model, dtype: bfloat16}
data: {train: rows.jsonl, packing: false, max_length: 512, train_on: assistant}
training:
  learning_rate: 3e-4
  lr_scheduler_type: cosine
  warmup_steps: 0.1
  weight_decay: 0.05
  num_train_epochs: 2
  gradient_accumulation_steps: 4
  gradient_checkpointing: true
  mixed_precision: bf16
  report_to: none
lora: {r: 4, alpha: 16, dropout: 0.1, target_modules: [q_proj, v_proj]}
"""
DPO = """model: {name_or_path: some/model}
data: {train: pairs.jsonl, packing: false, max_length: 512}
training:
  algorithm: dpo
  learning_rate: 1e-6
  mixed_precision: bf16
  report_to: none
  dpo: {beta: 0.3, label_smoothing: 0.1}
"""


def loaded(folder: Path, text: str) -> Loaded:
    file = folder / "ours.yaml"
    file.write_text(text)
    return load_config(str(file))


@pytest.mark.parametrize("system", NAMES)
def test_weights_in_bfloat16_alone_come_back(tmp_path: Path, system: str) -> None:
    found = export_config(
        loaded(tmp_path, DPO.replace("training:\n", "training:\n  pure_bf16: true\n")), system
    )
    assert not {"training.pure_bf16", "training.mixed_precision"} & set(found.lost)


@pytest.mark.parametrize("text", [SFT, DPO], ids=["sft", "dpo"])
@pytest.mark.parametrize("system", NAMES)
def test_what_is_kept_comes_back(tmp_path: Path, system: str, text: str) -> None:
    """Only these differ after an import of what was exported; each says so in the file."""
    found = export_config(loaded(tmp_path, text), system)
    # TRL's sigmoid loss does not read label_smoothing
    smoothed = {"training.dpo.label_smoothing"} if text is DPO else set()
    allowed = {
        "trl": {"model.dtype"} | smoothed,  # beside bf16 it acts nowhere, so an import writes none
        # its ranking rows have the column instruction, its own default, which is written out
        "llamafactory": {"model.dtype", "data.train", "data.train_on", "data.truncation"},
        # axolotl trains the bfloat16 weights themselves, unless an engine makes float32 masters
        "axolotl": {"data.train_on", "model.dtype", "training.save_total_limit", "training.pure_bf16"}
        | smoothed,
        "swift": {"model.dtype", "data.on_bad_row", "data.num_proc", "training.data_seed"}
        | {"training.router_aux_loss_coef"},
    }[system]
    assert set(found.lost) <= allowed
    for path in found.lost:
        assert f"#   {path}: " in found.text()
    values = found.keys
    assert {3e-4, 1e-6} & {values.get("learning_rate")}
    assert values.get("lora_r", values.get("lora_rank")) == (4 if text is SFT else None)


def test_a_lost_value_is_seen(tmp_path: Path) -> None:
    """Rows that are left out when too long: TRL cuts them."""
    found = export_config(loaded(tmp_path, SFT.replace("train_on: assistant", "on_too_long: skip")), "trl")
    assert found.lost["data.on_too_long"] == ("skip", "truncate")


def test_an_algorithm_without_a_trainer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        export_config(loaded(tmp_path, "training: {algorithm: classification}"), "trl")
    assert caught.value.diagnostics[0].code == "config.export"


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_deepspeed_comes_back(tmp_path: Path, strategy: str) -> None:
    ours = loaded(tmp_path, SFT.replace("training:", f"training:\n  distributed_strategy: {strategy}"))
    (tmp_path / "ds.json").write_text(export_text(ours, "deepspeed"))
    (tmp_path / "back.yaml").write_text("training: {deepspeed: ds.json, optim: adamw_torch}\n")
    back = load_config(str(tmp_path / "back.yaml")).config.training
    for name in (
        "gradient_accumulation_steps",
        "mixed_precision",
        "learning_rate",
        "weight_decay",
        "max_grad_norm",
    ):
        assert getattr(back, name) == getattr(ours.config.training, name), name
    assert f'"stage": {strategy[-1]}' in export_text(ours, "deepspeed")


def test_accelerate_comes_back(tmp_path: Path) -> None:
    ours = loaded(tmp_path, SFT + "launch: {nproc: 4}\n")
    (tmp_path / "a.yaml").write_text(export_text(ours, "accelerate"))
    (tmp_path / "back.yaml").write_text("training: {accelerate_config: a.yaml}\n")
    back = load_config(str(tmp_path / "back.yaml")).config
    assert (back.launch.nproc, back.training.mixed_precision) == (4, "bf16")


def test_an_unknown_system_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        export_text(loaded(tmp_path, SFT), "megatron")


def _exports() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return [row for row in rows if "keys" in row]


@pytest.mark.parametrize("row", _exports(), ids=lambda row: f"{row['program']}-{Path(row['config']).stem}")
def test_what_the_program_started_is_what_is_written(row: dict[str, Any], monkeypatch: Any) -> None:
    """The keys are those that the program itself read; ``tests/peers/exports.py`` asks it anew."""
    monkeypatch.chdir(exports.ROOT)
    made = exports.exported(row["config"], row["program"], "/FOLDER", row["form"])
    assert json.loads(json.dumps(made.keys)) == row["keys"]
    assert list(made.lost) == row["lost"] and made.missing == []
    # what those environments lack, and a data set of three packed rows to evaluate
    known = ("deepspeed", "eval dataset split is too small")
    assert row.get("error") is None or any(reason in row["error"] for reason in known)


@pytest.mark.parametrize("program", sorted({row["program"] for row in _exports()}))
def test_a_config_is_refused_only_where_the_program_has_no_such_training(program: str) -> None:
    rows = json.loads(RECORDED.read_text(encoding="utf-8"))
    named = {row["config"]: row for row in rows if row["program"] == program}
    assert set(named) == set(exports.configs())
    refused = {row["refused"] for row in named.values() if "refused" in row}
    assert all("has no trainer for" in says or "prompt styles of its own" in says for says in refused)


def test_without_a_file_the_export_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"instruction": "a", "input": "", "output": "b"}]')
    text = SFT.replace("rows.jsonl", str(tmp_path / "rows.json")).replace(
        "name_or_path: some/model, dtype: bfloat16", "config: {model_type: llama}, tokenizer: t"
    )
    found = export_config(loaded(tmp_path, text), "trl").text()
    assert "--output FILE writes it: the first weights" in found and "rows as trl reads them" in found
