"""Every command of the chapters on monitoring, troubleshooting and hardware runs, in a folder with a finished
run. One that needs what not every machine has says so (``# needs: …``). What only reads a config or a machine
runs in every suite; what looks at a run, needs time, or is there after all, in the slow one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import TINY_LLAMA, Run, run_process

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = ("docs/monitoring.md", "docs/troubleshooting.md", "docs/hardware.md")
TIME = "a while"
#: What a command may need, and whether it is here.
NEEDS: dict[str, Callable[[], bool]] = {
    TIME: lambda: True,
    "DeepSpeed": lambda: find_spec("deepspeed") is not None,
    "DeepSpeed and 4 devices": lambda: False,
    "an NVIDIA card": lambda: False,  # tests/gpu
    "a browser": lambda: False,  # tests/unit/watch opens the page in one
    "iftop, root and several nodes": lambda: False,
    "InfiniBand": lambda: False,
    "the process id of a rank": lambda: False,  # tests/integration sends the signal
    "a second run": lambda: False,  # tests/unit/cli compares two
}
_COMMENT = re.compile(r"\s+# ")


@dataclass(frozen=True)
class Line:
    """A command of a page, and what it needs."""

    command: str
    needs: str


def lines(page: str) -> list[Line]:
    found = []
    text = (ROOT / page).read_text(encoding="utf-8")
    for line in "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).splitlines():
        command, comment = (*_COMMENT.split(line, maxsplit=1), "")[:2]
        needs = re.match(r"needs: ([^.]+)", comment)
        found.append(Line(command.strip(), needs[1].strip() if needs else ""))
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with my.yaml, and the checkout's scripts and examples."""
    for name in ("examples", "configs", "scripts", "main.py", "prepare_datasets.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    for path in ROOT.glob("config*.yaml"):
        (tmp_path / path.name).symlink_to(path)
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


def environment(folder: Path) -> dict[str, str]:
    return {"PACELINE_CACHE": str(folder / "cache"), "PACELINE_LEDGER": "off", "MPLBACKEND": "Agg"}


def verb(words: list[str], place: Path) -> Run:
    """A verb of ours, in a process that starts warm."""
    return run_process([sys.executable, "-m", "paceline.cli.main", *words], 150, environment(place), place)


def in_a_shell(command: str, place: Path) -> Run:
    """As a user types it, with this interpreter's programs first on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    extra = {**environment(place), "PATH": path}
    trains = re.search(r"paceline train|main\.py|run_distributed\.py", command)
    if trains and "--resume" not in command:  # a run of its own, short
        extra["PACELINE_TRAINING__MAX_STEPS"] = "2"
        extra["PACELINE_TRAINING__OUTPUT_DIR"] = str(place / f"run-{abs(hash(command))}")
    return run_process(["bash", "-c", command], 560, extra, place)


def reads_little(line: Line) -> bool:
    """No run is looked at, no interpreter starts."""
    return (
        not line.needs and "outputs" not in line.command and line.command.startswith(("paceline ", "printf "))
    )


def test_commands_about_a_config_or_a_machine_run(place: Path) -> None:
    little = dict.fromkeys(line.command for page in CHAPTERS for line in lines(page) if reads_little(line))
    assert len(little) > 8
    for command in little:
        if command.startswith("printf "):
            done = in_a_shell(command, place)
        else:
            done = verb(shlex.split(command)[1:], place)
        assert done.code == 0, (command, done.out[-2000:], done.err[-2000:])
    assert verb(["explain", "no.such"], place).code == 2, "one that fails is seen"


@pytest.mark.parametrize("page", CHAPTERS)
def test_what_a_command_needs_is_known(page: str) -> None:
    assert {line.needs for line in lines(page) if line.needs} <= set(NEEDS)
    chinese = (ROOT / page.replace(".md", ".zh-CN.md")).read_text(encoding="utf-8")
    marked = sum(bool(line.needs) for line in lines(page))
    assert marked == len(re.findall(r"(?<!`)# 需要：", chinese))


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("page", CHAPTERS)
def test_every_command_runs(page: str, trained: Path) -> None:
    for line in lines(page):
        if not line.needs or NEEDS[line.needs]():
            done = in_a_shell(line.command, trained)
            assert done.code == 0, (line.command, done.out[-2000:], done.err[-2000:])
    assert in_a_shell("cat outputs/none", trained).code == 1, "one that fails is seen"
