"""``docs/explanation/architecture.md`` says what the sources say: rooms, their docstrings, contracts that
comments cite, files that are there.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
ADD = (ROOT / "docs/how-to/add.md").read_text(encoding="utf-8")
STEP = (ROOT / "docs/explanation/one-step.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def _rooms() -> dict[str, str]:
    """Room → the first line of its docstring."""
    found = {}
    for file in sorted((ROOT / "paceline").glob("*/__init__.py")):
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        assert text, file
        found[file.parent.name] = _summary(text)
    return found


def _summary(docstring: str) -> str:
    """The first paragraph on one line."""
    return " ".join(docstring.split("\n\n")[0].split())


def test_each_room_stands_there_with_its_own_words() -> None:
    assert dict(_ROW.findall(PAGE)) == _rooms()


def test_rooms_within_rooms_stand_there_with_their_own_words() -> None:
    inner = {}
    for file in sorted((ROOT / "paceline").glob("*/**/__init__.py")):
        room = file.parent.relative_to(ROOT / "paceline")
        if len(room.parts) > 1:
            inner[str(room)] = _summary(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "")
    assert dict(re.findall(r"^\| `(\w+(?:/\w+)+)` \| (.+) \|$", PAGE, re.MULTILINE)) == inner


def test_rooms_stand_in_the_order_of_imports() -> None:
    listed = re.search(
        r"^ROOMS = \((.*?)\)",
        (ROOT / "tests/architecture/sources.py").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert listed
    order = [name for name in re.findall(r'"(\w+)"', listed[1]) if name in _rooms()]
    assert [name for name, _ in _ROW.findall(PAGE)] == order


def test_every_contract_that_a_comment_cites_is_written() -> None:
    written = {int(n) for n in re.findall(r"^(\d+)\. \*\*", PAGE, re.MULTILINE)}
    cited = {
        int(n)
        for file in (ROOT / "paceline").rglob("*.py")
        for n in re.findall(r"[Cc]ontract (\d+)", file.read_text(encoding="utf-8"))
    }
    assert written == set(range(1, 15)) and cited and cited <= written


def test_files_that_are_named_are_there() -> None:
    pattern = r"`((?:paceline|tests|docs|scripts|dev)/[\w./-]+?)/?`"
    named = {title: re.findall(pattern, page) for title, page in (("", PAGE), ("add", ADD), ("step", STEP))}
    assert len(named[""]) >= 4 and len(named["add"]) > 20 and len(named["step"]) > 35
    assert [name for names in named.values() for name in names if not (ROOT / name).exists()] == []


def test_a_step_goes_through_each_room_of_a_training() -> None:
    rooms = set(re.findall(r"`paceline/(\w+)/", STEP))
    assert rooms > {"cli", "config", "rules", "plan", "launch", "runtime", "data", "models", "strategies"}
    assert rooms > {"algorithms", "training", "checkpoint", "runlog", "watch", "protocols"}


def test_functions_that_a_step_names_are_in_their_files() -> None:
    functions = re.findall(r"`(\w+)` in `(paceline/[\w/]+\.py)`", STEP)
    assert len(functions) >= 3
    missing = [
        (name, file) for name, file in functions if f"def {name}(" not in (ROOT / file).read_text("utf-8")
    ]
    assert missing == []


def test_commits_that_are_cited_are_there() -> None:
    cited = [" ".join(found.split()) for found in re.findall(r'Commit: "([^"]+)"', ADD)]
    log = subprocess.run(["git", "log", "--format=%s"], cwd=ROOT, capture_output=True, text=True, check=False)
    if log.returncode != 0 or len(log.stdout.splitlines()) < 100:
        pytest.skip("no history here")
    assert len(cited) > 5
    assert [one for one in cited if not any(one in subject for subject in log.stdout.splitlines())] == []


def test_contributing_names_every_room_in_the_order_of_imports() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.search(r"rooms that stand before it:\n(.+?)\.\n", page, re.DOTALL)
    assert named
    assert re.findall(r"\w+", named[1]) == [name for name, _ in _ROW.findall(PAGE)]
