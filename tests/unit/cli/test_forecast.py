"""``paceline plan`` for hardware that is not here: a named model, a config, JSON, the picture, and bad
questions.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import swept
from typer.testing import CliRunner

from paceline.cli.main import application_of
from paceline.core.errors import ConfigError

RUN = CliRunner()


def asked(*arguments: str, code: int = 0) -> str:
    """What ``plan`` prints; it leaves with ``code``."""
    result = RUN.invoke(application_of("plan"), list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code
    return result.stdout


def test_the_table_reads_in_a_hundred_columns_and_says_what_to_start() -> None:
    told = asked("--model", "llama-3-70b", "--hardware", "1024xH100")
    assert max(map(len, told.splitlines())) <= 100
    assert told.count("\n* ") >= 1 and "no: " in told and "optimizer" in told
    for word in ("fastest:", "start:", "auto:", "goodput:", "Young/Daly", "learning rate", "spread:"):
        assert word in told


def test_a_million_tokens_are_split_over_context_ranks_or_it_is_said_what_holds_them() -> None:
    job = ("--model", "llama-3.1-8b", "--seq-len", "1048576")
    chosen = json.loads(asked(*job, "--hardware", "64xH100", "--json"))["chosen"]
    assert chosen["mesh"]["cp"] >= 8 and chosen["safe"]
    told = " ".join(asked(*job, "--hardware", "8xH100", code=2).split())
    assert "Nothing fits." in told and "1,048,576 tokens are longer than the model's 131,072" in told
    more = re.search(r"what would make it fit: (\d+) × as many devices, where (.+?) needs", told)
    assert more is not None and "or LoRA" not in told, "activations are the limit"
    named = json.loads(asked(*job, "--hardware", f"{8 * int(more[1])}xH100", "--json"))["chosen"]
    assert named["safe"] and named["strategy"] == more[2], "the remedy is what the search finds there"


def test_json_holds_every_term_and_the_config_that_starts_it() -> None:
    told: dict[str, Any] = json.loads(asked("--model", "llama-3-8b", "--hardware", "16xH100", "--json"))
    row = told["chosen"]
    assert sum(row["memory_terms"].values()) == pytest.approx(row["memory_bytes"], abs=20)
    assert sum(row["time_terms"].values()) == pytest.approx(row["step_seconds"], abs=0.001)
    mesh = row["mesh"]
    assert mesh["pp"] * mesh["dp_replicate"] * mesh["dp_shard"] * mesh["cp"] * mesh["tp"] == 16
    assert row["micro_batch"] * row["accumulation"] * mesh["dp_replicate"] * mesh["dp_shard"] == told["rows"]
    assert row["config"]["per_device_train_batch_size"] == row["micro_batch"]


def config_at(folder: Path, **training: Any) -> Path:
    path = folder / "c.yaml"
    values = {
        "model": {"name_or_path": "meta-llama/Meta-Llama-3-8B"},
        "data": {"train_file": "x.jsonl", "max_length": 4096},
        "training": {"output_dir": str(folder / "out"), **training},
    }
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_config_is_planned_for_the_hardware_named(tmp_path: Path) -> None:
    config = str(config_at(tmp_path, per_device_train_batch_size=2))
    told = asked(config, "--hardware", "16xH100")
    assert "with zero3 in 16 processes on cuda" in told and "\n= zero3" in told
    found = json.loads(asked(config, "--hardware", "16xH100", "--json"))
    terms, states = found["forecast"]["planned"]["memory_terms"], found["memory"]["largest"]
    assert (terms["parameters"], terms["gradients"]) == (
        states["parameters"],
        states["gradients"],
    ), "counted to the byte"


@pytest.mark.parametrize(
    ("hardware", "model"),
    swept(product(("8xH100", "16xA100"), ("qwen3-30b-a3b", "gpt2-xl", "llama-3-8b")), 5),
)
def test_every_layout_that_fits_is_one_that_the_plan_accepts(
    model: str, hardware: str, tmp_path: Path
) -> None:
    """The keys a row prints resolve to that row's mesh and batch."""
    from paceline.plan.model.model_catalogue import known_models

    told = json.loads(asked("--model", model, "--hardware", hardware, "--json"))
    for row in told["strategies"]:
        if not row["fits"]:
            continue
        path = config_at(tmp_path, **row["config"])
        values = yaml.safe_load(path.read_text())
        values["model"] = {"config": dict(known_models()[model].config), "tokenizer": "./tokenizer"}
        values["data"]["max_length"] = 1024
        path.write_text(yaml.safe_dump(values))
        made = json.loads(asked(str(path), "--hardware", hardware, "--json"))
        assert made["batch"]["global_batch"] == told["rows"], row["strategy"]
        assert made["precision"]["compute"] == "bfloat16", row["strategy"]
        assert {axis: size for axis, size in made["mesh"].items() if axis in ("pp", "tp", "cp")} == {
            axis: size for axis, size in row["mesh"].items() if axis in ("pp", "tp", "cp")
        }, row["strategy"]


def test_the_other_models_of_an_algorithm_take_memory_and_time() -> None:
    told = {
        a: json.loads(asked("--model", "llama-3-8b", "--hardware", "8xH100", "--algorithm", a, "--json"))
        for a in ("sft", "ppo")
    }
    fsdp = {a: next(r for r in t["strategies"] if r["strategy"] == "fsdp") for a, t in told.items()}
    assert fsdp["sft"]["memory_terms"]["others"] == 0 < fsdp["ppo"]["memory_terms"]["others"]
    assert fsdp["ppo"]["time_terms"]["generation"] > fsdp["ppo"]["time_terms"]["compute"]
    assert fsdp["ppo"]["config"]["algorithm"] == "ppo"


def test_the_ledger_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_LEDGER", str(tmp_path / "l.jsonl"))
    assert "empty" in asked("--ledger")
    assert json.loads(asked("--ledger", "--json"))["runs"] == []


def test_the_picture_is_written(tmp_path: Path) -> None:
    asked("--model", "llama-3-8b", "--hardware", "8xA100", "--picture", str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        ((), "plan.subject", "paceline plan"),
        (("--model", "llama-3-8b"), "plan.subject", "--hardware"),
        (("--model", "lama-3-8b", "--hardware", "8xH100"), "plan.model_unknown", "llama-3-8b"),
        (("--model", "llama-3-8b", "--hardware", "8xH10000"), "plan.hardware_unknown", "H100-SXM-80GB"),
        (("--model", "llama-3-8b", "--hardware", "8xH100", "--bits", "4"), "plan.bits", "--lora"),
        (("--model", "llama-3-8b", "--hardware", "8xH100", "--algorithm", "rl"), "plan.algorithm", "grpo"),
    ],
)
def test_bad_questions_are_answered_with_what_would_be_right(
    arguments: tuple[str, ...], code: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        asked(*arguments)
    found = caught.value.diagnostics[0]
    assert found.code == code and hint in found.hint + found.where


def test_no_torch_no_numpy_and_no_transformers_are_imported() -> None:
    program = (
        "import sys\nfrom paceline.cli.planning import ModelJob, forecast_of_model\n"
        "from paceline.plan.cost.report"
        " import text\ntext(forecast_of_model(ModelJob('llama-3-8b'), '8xH100'))\nassert not"
        " {'torch', 'numpy', 'transformers', 'matplotlib'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
