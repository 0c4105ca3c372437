"""What a plan is told of prepared data: rows and tokens of an epoch, or nothing where nothing is prepared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.data.prepare import epoch_lengths
from paceline.data.prepare.prepare import prepare


def config_of(tokenizer: Path, rows: Path, algorithm: str = "sft", **data: Any) -> Config:
    sections = {
        "model": {"config": {"model_type": "llama"}, "tokenizer": str(tokenizer)},
        "training": {"algorithm": algorithm},
    }
    return Config.model_validate(
        {**sections, "data": {"train": str(rows), "max_length": 64, "packing": False, **data}}
    )


def prepared(config: Config, cache: Path) -> list[int]:
    """Tokens of each document."""
    seed = config.training.seed
    return [int(n) for n in prepare(config.data, config.model, seed=seed, cache_dir=cache).train.lengths]


def test_nothing_is_said_before_it_is_prepared_and_every_token_after(
    tokenizer_dir: Path, alpaca_file: Path, tmp_path: Path
) -> None:
    config = config_of(tokenizer_dir, alpaca_file)
    assert epoch_lengths.lengths_of(config, tmp_path) is None
    assert not (tmp_path / "prepared").exists(), "a plan prepares nothing"
    documents = prepared(config, tmp_path)
    assert epoch_lengths.lengths_of(config, tmp_path) == (len(documents), sum(documents))
    other = config_of(tokenizer_dir, alpaca_file, max_length=48)
    assert epoch_lengths.lengths_of(other, tmp_path) is None, "another length is another preparation"


def test_packed_rows_are_counted_as_training_packs_them(
    tokenizer_dir: Path, alpaca_file: Path, tmp_path: Path
) -> None:
    config = config_of(tokenizer_dir, alpaca_file, packing=True, max_length=96)
    documents = prepared(config, tmp_path)
    found = epoch_lengths.lengths_of(config, tmp_path)
    assert found is not None and found[1] == sum(documents)
    assert -(-sum(documents) // 96) <= found[0] < len(documents)


def test_weights_draw_documents_again(tokenizer_dir: Path, alpaca_file: Path, tmp_path: Path) -> None:
    config = config_of(tokenizer_dir, alpaca_file, train=[{"path": str(alpaca_file), "weight": 2}])
    documents = prepared(config, tmp_path)
    assert epoch_lengths.lengths_of(config, tmp_path) == (2 * len(documents), 2 * sum(documents))


def test_where_it_cannot_be_told_in_passing_nothing_is_said(
    tokenizer_dir: Path, alpaca_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tokenizer_dir, alpaca_file)
    prepared(config, tmp_path)
    pairs = config_of(tokenizer_dir, alpaca_file, algorithm="dpo")
    gone = config_of(tokenizer_dir, tmp_path / "none.jsonl")
    hub = Config.model_validate({**config.to_json(), "model": {"name_or_path": "org/model"}})
    assert [epoch_lengths.lengths_of(c, tmp_path) for c in (pairs, gone, hub)] == [None, None, None]
    monkeypatch.setattr(epoch_lengths, "IN_PASSING", 10)
    assert epoch_lengths.lengths_of(config, tmp_path) is None, "a large file is not read for a plan"


def test_it_answers_on_the_command_line(tokenizer_dir: Path, alpaca_file: Path, tmp_path: Path) -> None:
    config = config_of(tokenizer_dir, alpaca_file)
    job, answer = tmp_path / "job.json", tmp_path / "answer.json"
    job.write_text(json.dumps({"config": config.to_json(), "cache": str(tmp_path)}))
    assert epoch_lengths.main(str(job), str(answer)) == 0 and json.loads(answer.read_text()) is None
    documents = prepared(config, tmp_path)
    assert epoch_lengths.main(str(job), str(answer)) == 0
    assert json.loads(answer.read_text()) == [len(documents), sum(documents)]
