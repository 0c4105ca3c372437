"""Preparation with several processes: sharing the work, and preparing the same set at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm

from paceline.config.schema import Config
from paceline.data.prepare.prepare import Prepared, prepare

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.integration


def described(tmp_path: Path, num_proc: int, rows: int) -> Path:
    """A config for preparing ``rows`` rows with a byte-level tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>").save_pretrained(
        str(tmp_path / "tokenizer")
    )
    data = tmp_path / "rows.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": f"Q{i}", "completion": f"A{i}"}) + "\n" for i in range(rows))
    )
    section = {"train": str(data), "num_proc": num_proc, "max_length": 64}
    config = Config.from_json({"model": {"tokenizer": str(tmp_path / "tokenizer")}, "data": section})
    path = tmp_path / f"config-{num_proc}.json"
    path.write_text(json.dumps(config.to_json()))
    return path


def start(config: Path, cache: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "paceline.data.prepare.main",
        "--config-json",
        str(config),
        "--cache",
        str(cache),
    ]
    return warm.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_runs_preparing_the_same_set_do_the_work_once(tmp_path: Path) -> None:
    config, cache = described(tmp_path, 1, 3000), tmp_path / "cache"
    runs = [start(config, cache) for _ in range(2)]
    told = [run.communicate(timeout=240) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    assert sorted("found in the cache" in out for out, _ in told) == [False, True]
    assert len(list((cache / "prepared").iterdir())) == 1


def prepared_here(config: Path, cache: Path) -> Prepared:
    sections = Config.from_json(json.loads(config.read_text()))
    return prepare(sections.data, sections.model, seed=42, cache_dir=cache)


def test_a_run_that_was_killed_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    config, cache = described(tmp_path, 1, 6000), tmp_path / "cache"
    run = start(config, cache)
    stages = cache / "prepared"
    while run.poll() is None and not (stages.is_dir() and any(stages.iterdir())):
        time.sleep(0.01)
    run.kill()
    run.communicate(timeout=240)
    assert run.returncode != 0, "it ended before it could be killed"
    prepared = prepared_here(config, cache)
    assert (prepared.counts.rows_read, prepared.from_cache) == (6000, False)
    assert [p.name for p in stages.iterdir()] == [prepared.fingerprint]


def test_several_processes_give_the_same_table(tmp_path: Path) -> None:
    tables = [
        prepared_here(described(tmp_path, num_proc, 3000), tmp_path / f"cache-{num_proc}").path.joinpath(
            "tokens.arrow"
        )
        for num_proc in (1, 2)
    ]
    assert tables[0] != tables[1]
    assert tables[0].read_bytes() == tables[1].read_bytes()
