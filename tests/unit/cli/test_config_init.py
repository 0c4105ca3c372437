"""`paceline config init`: answers become a YAML that our reading accepts."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from paceline.cli.new_configs import QUESTIONS, init
from paceline.config.load import load_config
from paceline.core.errors import ConfigError


class Terminal(io.StringIO):
    """A stdin that is a terminal, with what is typed."""

    def isatty(self) -> bool:
        return True


def test_typed_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = {
        "model.name_or_path": "a/b",
        "data.train": "rows.jsonl",
        "training.algorithm": "dpo",
        "lora.r": "4",
        "launch.nproc": "2",
        "training.learning_rate": "1e-6",
        "training.mixed_precision": "no",
    }
    monkeypatch.setattr(
        sys, "stdin", Terminal("".join(f"{typed.get(question.key, '')}\n" for question in QUESTIONS))
    )
    init(tmp_path / "new.yaml", {})
    config = load_config(str(tmp_path / "new.yaml")).config
    assert (config.model.name_or_path, config.data.train[0].path) == ("a/b", "rows.jsonl")
    assert (config.training.algorithm, config.training.learning_rate, config.launch.nproc) == ("dpo", 1e-6, 2)
    assert config.lora is not None and config.lora.r == 4 and config.training.mixed_precision == "no"
    assert "# Epochs" in (tmp_path / "new.yaml").read_text()


def test_without_a_terminal_defaults_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    init(
        tmp_path / "new.yaml", {"model.name_or_path": "a/b", "data.train": "r.jsonl", "data.max_length": "64"}
    )
    config = load_config(str(tmp_path / "new.yaml")).config
    assert (config.lora, config.launch.nproc, config.data.max_length) == (None, None, 64)
    with pytest.raises(ConfigError, match="stdin is no terminal"):
        init(tmp_path / "other.yaml", {"model.name_or_path": "a/b"})
    assert not (tmp_path / "other.yaml").exists()


def test_an_existing_file_and_an_unknown_key_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("")
    for file, answers in (("x.yaml", {}), ("y.yaml", {"training.sed": "1"})):
        with pytest.raises(ConfigError):
            init(tmp_path / file, answers)
    assert (tmp_path / "x.yaml").read_text() == ""
