"""Every command of the chapters on monitoring, troubleshooting and hardware runs, in a folder with a finished
run. One that needs what not every machine has says so (``# needs: …``). What only reads a config or a machine
runs in every suite; what looks at a run, needs time, or is there after all, in the slow one.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from page_commands import NEEDS, ROOT, Line, in_a_shell, like_a_checkout, lines, verb
from support import TINY_LLAMA, Run

pytestmark = pytest.mark.e2e

CHAPTERS = ("docs/how-to/monitor.md", "docs/how-to/troubleshoot.md", "docs/how-to/hardware.md")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with my.yaml, and the checkout's scripts and examples."""
    like_a_checkout(tmp_path)
    config = {
        "model": {
            "config": {**TINY_LLAMA, "vocab_size": 768},
            "tokenizer": "examples/tokenizer",
        },
        "data": {"train": "examples/data/train.json", "max_length": 128},
        "training": {"output_dir": "outputs/mine", "max_steps": 2, "save_steps": 2, "logging_steps": 1},
    }
    (tmp_path / "my.yaml").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def trained(place: Path) -> Path:
    """``place`` with the finished run of my.yaml in outputs/mine."""
    done = verb(["train", "my.yaml"], place)
    assert done.code == 0, done.err
    return place


def commands(page: str) -> list[Line]:
    return lines((ROOT / page).read_text(encoding="utf-8"))


def typed(command: str, place: Path) -> Run:
    """In a shell; a training gets a folder of its own, and is short."""
    trains = re.search(r"paceline train|main\.py|run_distributed\.py", command)
    own = {
        "PACELINE_TRAINING__MAX_STEPS": "2",
        "PACELINE_TRAINING__OUTPUT_DIR": str(place / f"run-{abs(hash(command))}"),
    }
    return in_a_shell(command, place, own if trains and "--resume" not in command else None)


def reads_little(line: Line) -> bool:
    """No run is looked at, no interpreter starts."""
    return (
        not line.needs and "outputs" not in line.command and line.command.startswith(("paceline ", "printf "))
    )


@pytest.mark.full
def test_commands_about_a_config_or_a_machine_run(place: Path) -> None:
    little = dict.fromkeys(line.command for page in CHAPTERS for line in commands(page) if reads_little(line))
    assert len(little) > 8
    for command in little:
        if command.startswith("printf "):
            done = typed(command, place)
        else:
            done = verb(shlex.split(command)[1:], place)
        assert done.code == 0, (command, done.out[-2000:], done.err[-2000:])
    assert verb(["explain", "no.such"], place).code == 2, "one that fails is seen"


@pytest.mark.parametrize("page", CHAPTERS)
def test_what_a_command_needs_is_known(page: str) -> None:
    assert {line.needs for line in commands(page) if line.needs} <= set(NEEDS)
    chinese = (ROOT / page.replace(".md", ".zh-CN.md")).read_text(encoding="utf-8")
    marked = sum(bool(line.needs) for line in commands(page))
    assert marked == len(re.findall(r"(?<!`)# 需要：", chinese))


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("page", CHAPTERS)
def test_every_command_runs(page: str, trained: Path) -> None:
    for line in commands(page):
        if not line.needs or NEEDS[line.needs]():
            done = typed(line.command, trained)
            assert done.code == 0, (line.command, done.out[-2000:], done.err[-2000:])
    assert typed("cat outputs/none", trained).code == 1, "one that fails is seen"
