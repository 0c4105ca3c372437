"""The table of families that the plan refuses and accepts by, held against Transformers itself.

All of them: ``scripts/test --slow tests/unit/models/test_families.py``; to write the table anew:
``python tests/unit/models/family_sweep.py write``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from family_sweep import examine, miscounted, registered

from paceline.plan.model.families_page import page
from paceline.plan.model.family import families, verdicts_of

# one a kind of thing that went wrong: a router's buffer, experts under released names, a trunk reached into,
# a window of one layer's alone, ALiBi, rope
FEW = ("bloom", "deepseek_v3", "exaone4", "falcon_h1", "gpt_neox", "opt", "phimoe", "qwen3_moe", "roberta")
COUNTED = (
    "bloom",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
    "mixtral",
    "olmoe",
    "opt",
    "qwen2_moe",
    "qwen3_moe",
)


@pytest.fixture(autouse=True)
def loader_threads_end() -> Iterator[None]:
    """Transformers' weight loader lets its threads end on their own, a moment later."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(10)


def held(kind: str) -> None:
    """The verdict of a trial in small is the table's, but for families without sizes that the plan reads."""
    found, row = examine(kind).to_json(), families()[kind]
    if "rows" in found and row.refused:
        assert "predicted" in row.refused, f"{kind} trains, and is refused: {row.refused}"
        return
    assert found.get("rows", "") == row.rows, f"{kind}: {found} is not the table's {row}"
    assert bool(found.get("buffers")) == row.buffers
    assert bool(found.get("carries")) == row.carries and bool(found.get("selects")) == row.selects


@pytest.mark.parametrize("kind", FEW)
def test_a_family_s_verdict_is_what_a_trial_gives(kind: str) -> None:
    held(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(families()))
def test_every_family_s_verdict_is_what_a_trial_gives(kind: str) -> None:
    held(kind)


def test_the_table_is_about_every_family_of_this_transformers() -> None:
    assert transformers.__version__ == verdicts_of(), "run tests/unit/models/family_sweep.py write"
    assert set(families()) == set(registered())


@pytest.mark.parametrize("kind", COUNTED)
def test_parameters_are_counted_as_transformers_does(kind: str) -> None:
    assert families()[kind].counted and miscounted(kind) == (True, 1.0)


def test_the_page_is_the_table_s() -> None:
    file = Path(__file__).parents[3] / "docs/reference/families.md"
    assert file.read_text(encoding="utf-8") == page(), (
        "python -m paceline.plan.model.families_page > docs/reference/families.md"
    )
