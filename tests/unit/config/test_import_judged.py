"""Imports of ms-swift against its own parsed arguments: recorded, or asked anew (slow, SWIFT_PYTHON)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from swift_cases import DTYPES, MODEL, SKIPPED, TABLE, commands

from paceline.config.exchange.accepted import accepted
from paceline.config.exchange.command_line import read_command
from paceline.config.exchange.importing import import_command
from paceline.config.exchange.verdicts import Imported, KeyVerdict
from paceline.config.load import load_config
from paceline.rules import of_config

RECORDED = Path(__file__).parent / "recorded" / "swift_4_6_0.json"
RESEARCH = Path(__file__).parents[3] / "research" / "swift_arguments.py"
COUNT = 80


def inputs(folder: Path) -> None:
    """Write a model's config of each dtype, and rows."""
    for dtype in DTYPES:
        (folder / dtype).mkdir()
        config = {**MODEL, "dtype": dtype, "torch_dtype": dtype}
        (folder / dtype / "config.json").write_text(json.dumps(config))
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (folder / "rows.jsonl").write_text(json.dumps({"messages": turns}) + "\n")


def imported(words: Sequence[str], folder: Path) -> tuple[Imported, dict[str, Any]]:
    """The verdicts on `swift WORDS`, and the effective config."""
    found = import_command(read_command(["swift", *words]))
    made, problems = accepted(found, "test", of_config)
    assert problems == [], words
    file = folder / "ours.yaml"
    file.write_text(made.text)
    return found, load_config(str(file)).config.to_json()


def at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def differences(words: Sequence[str], resolved: Mapping[str, Any], folder: Path) -> list[str]:
    """What the import changes without a word."""
    found, config = imported(words, folder)
    said = {key for key, f in found.findings.items() if f.verdict in (KeyVerdict.LOST, KeyVerdict.DIFFERS)}
    wrong = []
    for path, (keys, theirs) in TABLE.items():
        expected = theirs(resolved)
        ours = at(config, path)
        alike = ours == expected or (isinstance(ours, (list, tuple)) and list(ours) == expected)
        if expected is not SKIPPED and not alike and not said & set(keys):
            wrong.append(f"{path}: {ours!r}, ms-swift has {expected!r}")
    return wrong


def test_every_setting_is_what_ms_swift_itself_resolves(tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    inputs(tmp_path)
    wrong = {}
    for case in recorded:
        words = [word.replace("FOLDER", str(tmp_path)) for word in case["words"]]
        if found := differences(words, case["resolved"], tmp_path):
            wrong[" ".join(case["words"])] = found
    assert len(recorded) > COUNT / 2 and wrong == {}


@pytest.mark.slow
@pytest.mark.skipif(
    "SWIFT_PYTHON" not in os.environ, reason="SWIFT_PYTHON names no interpreter with ms-swift"
)
def test_the_recorded_answers_are_ms_swifts(tmp_path: Path) -> None:
    """`RECORD=1` writes them anew."""
    inputs(tmp_path)
    made = commands(tmp_path, COUNT)
    (tmp_path / "commands.json").write_text(json.dumps(made))
    call = [os.environ["SWIFT_PYTHON"], str(RESEARCH), str(tmp_path / "commands.json")]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=environment)
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    fresh = [
        {"words": [w.replace(str(tmp_path), "FOLDER") for w in words], "resolved": kept(answer)}
        for words, answer in zip(made, answers, strict=True)
        if "error" not in answer
    ]
    if "RECORD" in os.environ:
        RECORDED.parent.mkdir(exist_ok=True)
        lines = ",\n".join(json.dumps(case, sort_keys=True) for case in fresh)
        RECORDED.write_text(f"[\n{lines}\n]\n")
    assert json.loads(RECORDED.read_text()) == fresh


class _Asked(dict):  # type: ignore[type-arg]
    """A mapping that remembers which keys the table asks for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({k: _Asked(v) if isinstance(v, dict) else v for k, v in values.items()})
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def kept(self) -> dict[str, Any]:
        return {k: v.kept() if isinstance(v, _Asked) else v for k, v in self.items() if k in self.asked}


def kept(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Only what the table reads of an answer."""
    asked = _Asked(answer)
    for _, theirs in TABLE.values():
        theirs(asked)
    return asked.kept()
