"""Every command of every page runs, in a folder with a finished run.

One that needs what not every machine has says so (``# needs: …``). What only reads a config or a machine runs
in the full suite; what looks at a run, or needs time, in the slow one. The recipes have another test.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from page_commands import NEEDS, ROOT, Line, in_a_shell, like_a_checkout, lines, verb
from support import TINY_LLAMA, Run

pytestmark = pytest.mark.e2e

RECIPES = ("own-chats", "preference", "grpo", "several-gpus", "recipes")
ELSEWHERE = {f"docs/tutorials/{page}.md" for page in RECIPES}  # test_recipe_commands.py
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if not path.name.endswith(".zh-CN.md")]
CHAPTERS = [
    name
    for path in PAGES
    if "```bash" in path.read_text(encoding="utf-8")
    and (name := path.relative_to(ROOT).as_posix()) not in ELSEWHERE
]
_FILE = re.compile(r"```python\n(# ([\w-]+\.py)\b.*?\n.*?)```", re.DOTALL)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:paceline|python|torchrun) ", re.MULTILINE)


def new_place(folder: Path) -> Path:
    """Make ``folder`` one with my.yaml, and the checkout's scripts and examples."""
    like_a_checkout(folder)
    config = {
        "model": {
            "config": {**TINY_LLAMA, "vocab_size": 768},
            "tokenizer": "examples/tokenizer",
        },
        "data": {"train": "examples/data/train.json", "max_length": 128},
        "training": {"output_dir": "outputs/mine", "max_steps": 2, "save_steps": 1, "logging_steps": 1},
    }
    (folder / "my.yaml").write_text(json.dumps(config))
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return new_place(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished run of my.yaml in outputs/mine."""
    folder = new_place(tmp_path_factory.mktemp("finished"))
    done = verb(["train", "my.yaml"], folder)
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def trained(finished: Path, tmp_path: Path) -> Path:
    """A copy of ``finished``, and the files that the page tells to save."""
    return shutil.copytree(finished, tmp_path / "place", symlinks=True)


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
    plain = not re.search(r"[>$|&]", line.command) and line.command.startswith("paceline ")
    looks_at_runs = "outputs" in line.command or line.command == "paceline runs"
    return not line.needs and not looks_at_runs and (plain or line.command.startswith("printf "))


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


def test_no_command_hides_in_a_block_without_a_language() -> None:
    assert len(CHAPTERS) > 30
    for path in PAGES:
        blocks = _BLOCK.findall(path.read_text(encoding="utf-8"))
        hidden = [text for language, text in blocks if language != "bash" and _COMMAND.search(text)]
        assert hidden == [], path
    language, text = _BLOCK.findall("```text\npaceline plan x\n```\n")[0]
    assert language == "text" and _COMMAND.search(text), "one would be seen"


def save_files(page: str, place: Path) -> None:
    """Write the blocks of a page that name their file in the first line."""
    for text, name in _FILE.findall((ROOT / page).read_text(encoding="utf-8")):
        (place / name).write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("page", CHAPTERS)
def test_every_command_runs(page: str, trained: Path) -> None:
    save_files(page, trained)
    for line in commands(page):
        if not line.needs or NEEDS[line.needs]():
            done = typed(line.command, trained)
            assert done.code == 0, (line.command, done.out[-2000:], done.err[-2000:])
    assert typed("cat outputs/none", trained).code == 1, "one that fails is seen"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_quick_start_of_the_readme_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    """Its YAML under its name, its commands in their order but for the setup; losses may round otherwise."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Quick start")[1]
    (language, config), (_, commands), (_, shown), *_ = _BLOCK.findall(text)
    assert language == "yaml" and "first.yaml" in text.split("```")[0]
    place = like_a_checkout(tmp_path)
    (place / "first.yaml").write_text(config, encoding="utf-8")
    printed = ""
    for command in commands.splitlines():
        done = in_a_shell(command, place)
        assert done.code == 0, (command, done.out[-2000:], done.err[-2000:])
        printed += " ".join(done.out.split()) + "\n"
    expected = [" ".join(line.split()) for line in shown.splitlines()]
    ends = [line.partition(" loss ")[0] for line in expected if line != "…"]
    assert len(ends) > 7
    assert [line for line in ends if line not in printed] == []
    assert (place / "my-model/config.json").exists()
