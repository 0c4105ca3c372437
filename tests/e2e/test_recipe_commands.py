"""Every recipe runs as it stands: its files under the names that they give, its commands in their order. The
first one's training runs in every suite, all of them in the slow one.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from page_commands import ROOT, in_a_shell, like_a_checkout, lines, verb

pytestmark = pytest.mark.e2e

PAGES = ("own-chats", "preference", "grpo", "several-gpus", "recipes")  # in their order
FIRST, *OTHERS = (
    recipe
    for page in PAGES
    for recipe in (ROOT / f"docs/tutorials/{page}.md").read_text(encoding="utf-8").split("\n## ")[1:]
)
_FILE = re.compile(r"```(?:yaml|python)\n(# (\S+)\n.*?)```", re.DOTALL)
SHORT = {"PACELINE_TRAINING__MAX_STEPS": "3"}


def save(recipe: str, place: Path) -> list[str]:
    """Write the files of a recipe; their names."""
    found = _FILE.findall(recipe)
    assert len(found) == recipe.count("```yaml") + recipe.count("```python"), "each block names its file"
    for text, name in found:
        (place / name).write_text(text, encoding="utf-8")
    return [name for _, name in found]


def test_the_first_recipe_trains(tmp_path: Path) -> None:
    place = like_a_checkout(tmp_path)
    assert save(FIRST, place) == ["chats.yaml"]
    mine = [line.command for line in lines(FIRST) if re.match(r"paceline (config|train) ", line.command)]
    assert len(mine) == 2
    for command in mine:
        done = verb(shlex.split(command)[1:], place, SHORT)
        assert done.code == 0, (command, done.out[-2000:], done.err[-2000:])
    result = json.loads((place / "outputs/chats/result.json").read_text())
    assert (result["outcome"], result["step"]) == ("completed", 3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_recipes_run_one_after_the_other(tmp_path: Path) -> None:
    place = like_a_checkout(tmp_path)
    for recipe in (FIRST, *OTHERS):
        save(recipe, place)
        assert lines(recipe), recipe
        for line in lines(recipe):  # the first to its end: later ones take its model and its checkpoints
            done = in_a_shell(line.command, place, None if recipe is FIRST else SHORT)
            assert done.code == 0, (line.command, done.out[-2000:], done.err[-2000:])
    runs = {p.parent.name: json.loads(p.read_text()) for p in (place / "outputs").glob("*/result.json")}
    assert set(runs) == {"chats", "dpo", "reward", "ppo", "grpo", "lora", "shared", "moved"}
    assert {run["outcome"] for run in runs.values()} == {"completed"}
    assert (runs["shared"]["world_size"], runs["moved"]["world_size"], runs["moved"]["step"]) == (2, 1, 4)
    assert (place / "dpo-adapter/adapter_config.json").exists() and (place / "dpo-model/config.json").exists()
    assert len((place / "answers.jsonl").read_text().splitlines()) == 40
    assert in_a_shell("paceline train none.yaml", place).code == 2, "one that fails is seen"
