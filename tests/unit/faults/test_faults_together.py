"""What is wrong with a config and what is wrong with its files come in one answer; and nothing is said of
a file that is false once the config is mended.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fault_jobs import Job

from paceline.config.layers.build import is_reliable, unreliable_keys
from paceline.config.load import NotLoaded, load_config
from paceline.config.source import DEFAULTS, Source
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.launch.preflight.load_config import load_to_start
from paceline.launch.preflight.plan_job import merged
from paceline.training.preflight.inputs import check_named_files

_RESUME = "resume.not_a_checkpoint"
# settings → the code that loading finds, and of which files it says nothing then: they may be meant otherwise
LOADED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown key": ({"training.num_epoch": 3}, "config.unknown_key", ""),
    "wrong type": ({"training.learning_rate": "abc"}, "config.type", ""),
    "no such word": ({"training.eval_strategy": "sometimes"}, "config.value", ""),
    "two precisions": ({"training.fp16": True, "training.bf16": True}, "prec.fp16_and_bf16", ""),
    "length": ({"data.max_length": "abc"}, "config.type", ""),
    "seed and key": ({"training.seed": "x", "training.sed": 1}, "config.type", ""),
    "rank": ({"lora.r": "x"}, "config.type", ""),
    "unknown section": ({"modle.name": 1}, "config.unknown_key", ""),
    "unknown of data": ({"data.trian": "x"}, "config.unknown_key", "data"),
    "unknown of the model": ({"model.wheels": "x"}, "config.unknown_key", "model"),
    "one key of the model": ({"model.trust_remote_cod": True}, "config.unknown_key", ""),
    "unknown of lora": ({"lora.adaptor": "x"}, "config.unknown_key", "lora"),
}
FILES: dict[str, tuple[dict[str, Any], str, str]] = {
    "none": ({}, "", ""),
    "model": ({"model.name_or_path": "/nowhere/model"}, "plan.model_missing", "model"),
    "tokenizer": ({"model.tokenizer": "/nowhere/tokenizer"}, "data.no_tokenizer", "model"),
    "rows": ({"data.train": "/nowhere/rows.json"}, "data.missing", "data"),
    "evaluation": ({"data.eval": "/nowhere/eval.json"}, "data.missing", "data"),
    "adapter": ({"lora.adapter_name_or_path": "/"}, "model.no_weights", "lora"),
}


@pytest.fixture
def job(tmp_path: Path, tokenizer_dir: Path) -> Job:
    return Job(tmp_path, tokenizer_dir)


def test_each_fault_of_a_config_and_each_of_a_file_together(job: Job) -> None:
    wrong = []
    for (one, (settings, code, hidden)), (other, (files, missing, section)) in product(
        LOADED.items(), FILES.items()
    ):
        with pytest.raises(NotLoaded) as caught:
            load_config(str(job.yaml({**settings, **files})))
        error = caught.value
        assert code in {d.code for d in error.diagnostics}, one
        found = check_named_files(error.partial.config, error.doubt)
        wanted = {missing} if missing and section != hidden else set()
        if {d.code for d in found} != wanted:
            wrong.append(f"{one}, {other}: {[d.code for d in found]}")
    assert wrong == []


def test_what_stands_wrong_is_not_looked_at(job: Job) -> None:
    with pytest.raises(NotLoaded) as caught:
        load_config(str(job.yaml({"data.train": 3, "model.name_or_path": ["/nowhere"]})))
    assert {"data.train", "model.name_or_path"} <= caught.value.doubt
    assert check_named_files(caught.value.partial.config, caught.value.doubt) == []


def test_all_come_in_one_answer_each_at_its_line(job: Job) -> None:
    settings = {"training.num_epoch": 1, "data.max_length": "abc", **FILES["rows"][0], **FILES["model"][0]}
    file = job.yaml(settings)
    lines = file.read_text().splitlines()
    with pytest.raises(ConfigError) as caught:
        load_to_start(file, [])
    at = {d.code: lines[int(d.where.rpartition(":")[2]) - 1] for d in caught.value.diagnostics}
    assert {code: json.loads("{" + line.strip().rstrip(",") + "}") for code, line in at.items()} == {
        "config.unknown_key": {"num_epoch": 1},
        "config.type": {"max_length": "abc"},
        "data.missing": {"train": "/nowhere/rows.json"},
        "plan.model_missing": {"name_or_path": "/nowhere/model"},
    }


def test_the_plan_of_a_config_with_misspellings_comes_in_the_same_answer(job: Job) -> None:
    """A slip that can mean one key alone hides nothing that planning, the machine or a checkpoint tell."""
    wrong = {"training.output_dir": "/proc/x", "training.resume_from_checkpoint": "/nowhere"}
    slips = {"training.learning_rat": "abc", "training.max_stepz": 3}
    for settings, codes in (
        ({**wrong, "training.weight_deca": 0.1}, {"config.unknown_key", "run.not_writable", _RESUME}),
        (slips, {"config.unknown_key", "config.type"}),
    ):
        with pytest.raises(ConfigError) as caught:
            load_to_start(job.yaml(settings), [])
        assert {d.code for d in caught.value.diagnostics} >= codes


def test_a_place_inside_anothers_hides_nothing() -> None:
    said = [
        Diagnostic("config.type", "wrong", "x.yaml:11"),
        Diagnostic("config.value", "wrong", "x.yaml:1 and x.yaml:12"),
    ]
    found = [Diagnostic("data.missing", "gone", where) for where in ("data.train", "data.eval", "yaml:11")]
    provenance = {"data.train": Source("yaml", "x.yaml", 1), "data.eval": Source("yaml", "x.yaml", 11)}
    assert [d.where for d in merged(said, found, provenance)] == [
        "x.yaml:11",
        "x.yaml:1 and x.yaml:12",
        "x.yaml:1",
        "x.yaml:11",
        "yaml:11",
    ]


@pytest.mark.parametrize(
    ("place", "doubt"),
    [
        ("x.yaml:1", "*"),
        ("x.yaml:3", "model"),
        ("x.yaml:5", "data.train"),
        ("x.yaml:6", "data"),
        ("y.yaml:6", "*"),
        ("runs/ds.json:3", "training.deepspeed"),
        ("x.yaml:99", "*"),
        ("command line data.trian=5", "data"),
        ("environment PACELINE_TRAINING__SED", "training"),
        ("command line --nproc", "*"),
        ("", "*"),
    ],
)
def test_where_a_fault_puts_in_doubt(place: str, doubt: str) -> None:
    provenance = {"data.train": Source("yaml", "x.yaml", 5), "data.eval": Source(DEFAULTS)}
    top = {"model": 2, "data": 4, "modle": 98}
    files = {"ds.json": "training.deepspeed"}
    problem = Diagnostic("config.type", "wrong", place)
    assert unreliable_keys([problem], provenance, "x.yaml", top, files=files) == {doubt}


def test_of_several_keys_in_a_line_the_one_that_is_named_is_in_doubt() -> None:
    provenance = {f"training.{name}": Source("yaml", "x.yaml", 3) for name in ("seed", "seeds", "fp8")}
    problem = Diagnostic("config.type", "training.seed must be a whole number", "x.yaml:3")
    assert unreliable_keys([problem], provenance, "x.yaml", {"training": 3}) == {"training.seed"}


def test_a_key_is_reliable_where_nothing_around_or_inside_it_is_in_doubt() -> None:
    doubt = frozenset({"data", "training.deepspeed", "model.config.vocab_size", "*"})
    assert [
        key
        for key in (
            "data.train",
            "training.deepspeed",
            "training.deepspeed.a",
            "training",
            "model.config",
            "model.tokenizer",
            "training.deep",
        )
        if is_reliable(doubt, key)
    ] == ["model.tokenizer", "training.deep"]
