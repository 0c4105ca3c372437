"""Exporters: functions of the exported folder; named by the run, by an option, or given as they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.checkpoint.export.exporters import OwnExporter, exporters_of, run_exporters
from paceline.core.errors import CheckpointError, ConfigError

MINE = """
def listing(folder):
    (folder / "files.txt").write_text("\\\\n".join(sorted(p.name for p in folder.iterdir())))

def careless(folder):
    (folder / "config.json").write_text("{}")

def failing(folder):
    raise OSError("no room")

NUMBER = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "mine_exporters.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "run" / "checkpoints" / "step-00000004"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text(
        json.dumps({"training": {"exporters": ["gguf", "mine_exporters:listing"]}})
    )
    yield folder
    sys.modules.pop("mine_exporters", None)


def test_those_of_the_run_unless_others_are_named(mine: Path) -> None:
    from paceline.core.rundir import RunDir

    RunDir.at(mine.parent.parent).config_json.write_text((mine.parent.parent / "config.json").read_text())
    found = exporters_of(None, mine)
    assert found.gguf and [one.name for one in found.own] == ["mine_exporters:listing"]
    for given in (["none"], []):
        assert exporters_of(given, mine).own == () and not exporters_of(given, mine).gguf

    def of_this_process(folder: Path) -> None:
        (folder / "mine.txt").write_text("")

    named = exporters_of([of_this_process, "mine_exporters:failing"], mine)
    assert [one.name.rpartition(".")[2] for one in named.own] == ["of_this_process", "mine_exporters:failing"]
    assert exporters_of(None, mine / "elsewhere" / "x").own == ()


@pytest.mark.parametrize("name", ["nosuch", "mine_exporters:NUMBER", "mine_exporters:nobody"])
def test_what_is_no_exporter_is_refused_before_anything_is_written(mine: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        exporters_of([name], mine)
    assert caught.value.diagnostics[0].code in ("export.exporter", "core.target_attr")


def test_they_write_beside_the_model_and_change_none_of_its_files(mine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')

    def run(name: str) -> None:
        run_exporters(exporters_of([f"mine_exporters:{name}"], mine).own, folder)

    run("listing")
    assert (folder / "files.txt").read_text() == "config.json"
    with pytest.raises(CheckpointError, match="has changed files of the model") as caught:
        run("careless")
    assert caught.value.diagnostics[0].found == "config.json"
    with pytest.raises(CheckpointError, match="OSError: no room"):
        run_exporters(
            [OwnExporter("one", lambda folder: None), *exporters_of(["mine_exporters:failing"], mine).own],
            folder,
        )
