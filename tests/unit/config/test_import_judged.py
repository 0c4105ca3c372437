"""Imports against the other program's own parsed arguments: recorded, or asked anew.

``scripts/test --peers`` asks; ``RECORD=1`` writes the answers anew.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import axolotl_cases
import llamafactory_cases
import pytest
import swift_cases
import trl_cases

from paceline.config.import_export.commands.command_line import read_command
from paceline.config.import_export.import_config import flat, import_command, import_data
from paceline.config.import_export.verdicts import Imported, KeyVerdict
from paceline.config.import_export.write_yaml import accepted, stands
from paceline.config.load import load_config
from paceline.config.schema import field_of
from paceline.core.json_types import JsonObject
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.rules import check, of_config
from paceline.rules.rule import Facts

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "peers"))

from ask import ask  # noqa: E402

Table = Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], object]]]


@dataclass(frozen=True)
class Peer:
    """A program: its generated inputs, how ours imports one, and what its answer makes of our settings."""

    name: str
    inputs: Callable[[Path, int], list[Any]]
    imported: Callable[[Any], Imported]
    table: Table
    count: int
    prepare: Callable[[Path], None] = lambda folder: None

    @property
    def recorded(self) -> Path:
        return HERE / "recorded" / f"{self.name}.json"


PEERS = [
    Peer(
        "swift",
        swift_cases.commands,
        lambda words: import_command(read_command(["swift", *words])),
        swift_cases.TABLE,
        80,
    ),
    Peer(
        "llamafactory",
        llamafactory_cases.files,
        lambda given: import_data(given, dict.fromkeys(given, 1), "a.yaml", "llamafactory"),
        llamafactory_cases.TABLE,
        80,
    ),
    Peer(
        "axolotl",
        axolotl_cases.files,
        lambda given: import_data(given, dict.fromkeys(flat(given), 1), "a.yaml", "axolotl"),
        axolotl_cases.TABLE,
        88,
        axolotl_cases.prepare,
    ),
    Peer(
        "trl",
        trl_cases.files,
        lambda given: import_data(given[1], dict.fromkeys(given[1], 1), "a.yaml", "trl", given[0]),
        trl_cases.TABLE,
        110,
    ),
]
PEER = pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)


def written(folder: Path) -> None:
    """Write a model's config of each dtype, and rows."""
    for dtype in swift_cases.DTYPES:
        (folder / dtype).mkdir()
        config = {**swift_cases.MODEL, "dtype": dtype, "torch_dtype": dtype}
        (folder / dtype / "config.json").write_text(json.dumps(config))
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (folder / "rows.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.jsonl"}}))


def at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    info = field_of(path)
    value = info.default if value is None and info else value
    auto = {
        "training.mixed_precision": "bf16",
        "data.train_on": "assistant",
    }  # the recorder's, conversations'
    if path == "training.disable_dropout" and value is None:
        return algorithm_spec(config["training"]["algorithm"]).disable_dropout
    return auto.get(path, value) if value == "auto" else value


def differences(peer: Peer, found: Imported, resolved: Mapping[str, Any], config: JsonObject) -> list[str]:
    """What the import changes without a word."""
    said = {key for key, f in found.findings.items() if f.verdict in (KeyVerdict.LOST, KeyVerdict.DIFFERS)}
    wrong = []
    for path, (keys, theirs) in peer.table.items():
        expected = theirs(resolved)
        ours = at(config, path)
        alike = ours == expected or (isinstance(ours, (list, tuple)) and list(ours) == expected)
        if expected is not swift_cases.SKIPPED and not alike and not said & set(keys):
            wrong.append(f"{path}: {ours!r}, {peer.name} has {expected!r}")
    ghosts = [
        f"{f.key} is said to stand in {f.to}"
        for f in found.of(KeyVerdict.MAPPED)
        if f.to and not any(stands(found, to) for to in f.to)
    ]
    return wrong + ghosts


#: warnings of a file's own numbers, which no other form of ours would spare
_OF_THE_FILE = ("train.warmup", "prec.lost_updates")


@PEER
def test_every_setting_is_what_the_other_program_resolves(tmp_path: Path, peer: Peer) -> None:
    """And our own rules have nothing against what the import writes."""
    recorded = json.loads(peer.recorded.read_text().replace("FOLDER", str(tmp_path)))
    written(tmp_path)
    file = tmp_path / "ours.yaml"
    wrong: dict[str, list[object]] = {}
    for case in recorded:
        found = peer.imported(case["given"])
        made, problems = accepted(found, "test", of_config)
        file.write_text(made.text)
        loaded = load_config(str(file))
        told = [*problems, *loaded.notes, *check(loaded.config, Facts(), provenance=loaded.provenance)]
        against = [(item.code, item.found) for item in told if item.code not in _OF_THE_FILE]
        if both := [*differences(peer, found, case["resolved"], loaded.config.to_json()), *against]:
            wrong[str(case["given"])] = both
    assert len(recorded) > peer.count / 2 and wrong == {}


@pytest.mark.peers
@pytest.mark.timeout(1800)
@PEER
def test_the_recorded_answers_are_the_other_programs(tmp_path: Path, peer: Peer) -> None:
    written(tmp_path)
    peer.prepare(tmp_path)
    made = peer.inputs(tmp_path, peer.count)
    answers = ask(peer.name, "arguments", made, tmp_path)
    fresh = [
        {"given": given, "resolved": kept(answer, peer.table)}
        for given, answer in zip(made, answers, strict=True)
        if "error" not in answer
    ]
    lines = ",\n".join(json.dumps(case, sort_keys=True) for case in fresh).replace(str(tmp_path), "FOLDER")
    if "RECORD" in os.environ:
        peer.recorded.parent.mkdir(exist_ok=True)
        peer.recorded.write_text(f"[\n{lines}\n]\n")
    assert json.loads(peer.recorded.read_text()) == json.loads(f"[{lines}]")


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


def kept(answer: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Only what the table reads of an answer."""
    asked = _Asked(answer)
    for _, theirs in table.values():
        theirs(asked)
    return asked.kept()
