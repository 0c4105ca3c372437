"""The family matrix: a few of its cells anew, and its page is its results'.

All cells: ``make families``.
"""

from __future__ import annotations

import pytest
from family_matrix import COLUMNS, PAGE, WHOLE, WORKS, Cell, checked, judged, load, page
from family_ranks import RANKED, TOGETHER, cells, rounding, run
from vision_matrix import IMAGES

# every column once, every family once
FEW = (
    ("llama", "step 1"),
    ("qwen3_5_text", "documents"),
    ("mamba", "neighbours"),
    ("gpt2", "lora"),
    ("qwen3_moe", "export"),
    ("phi3", "bf16"),
    ("olmo2", "fp16"),
    ("bloom", "carried"),
    ("mixtral", "balance loss"),
)


@pytest.mark.parametrize(("kind", "column"), FEW)
def test_a_cell_is_what_a_run_of_it_finds(kind: str, column: str) -> None:
    assert checked(kind, column).result == load()[kind][column]["result"] == WORKS


def test_every_column_is_run_here_once() -> None:
    assert {column for _, column in FEW} == set(COLUMNS)


def test_a_model_with_a_tower_is_what_a_run_of_it_finds() -> None:
    assert checked("gemma3", WHOLE).result == load()["gemma3"][WHOLE]["result"] == WORKS


def test_a_cell_about_images_is_what_a_run_of_it_finds() -> None:
    assert checked("llava", "adapters").result == load()["llava"]["adapters"]["result"] == WORKS
    assert {load()["llava"][column]["result"] for column in IMAGES} == {WORKS}
    assert checked("aria", "images").result == "refused"


def test_a_difference_beyond_the_bound_fails_and_a_refused_family_is_refused() -> None:
    assert judged(2e-6, 1e-10).result == "fails" and judged(1e-11, 1e-10) == Cell(WORKS, measured=1e-11)
    assert "to 2e-10" in judged(2e-10, 1e-10).reason
    assert checked("reformer", "step 1").result == "refused"


def test_cells_of_two_processes_are_judged_by_the_farthest_number() -> None:
    steps = [[2.0, 1.0], [1.5, 0.5]]
    near, far = [[2.00001, 1.0], [1.5, 0.5]], [[2.0, 1.0], [1.5, 0.501]]
    answers = [[[4, 5], [-1.0, -2.0]], [[6], [-3.0]]]
    one = {"single": steps, "grpo": {"norms": [1.0, 2.0], "gap": 1e-6}, "rollouts": answers}
    two = {"ddp": near, "fsdp": near, "zero3": near, "tp": {"refused": "no plan"}, "resume": True}
    found = cells(list(RANKED), one, {**two, "rollouts": answers})
    assert [found[c]["result"] for c in RANKED] == ["works", "refused", "works", "works", "works"]
    two |= {"zero3": far, "tp": {"fails": "E: x"}, "resume": False, "rollouts": [answers[0], [[7], [-3.0]]]}
    for grpo in ({"norms": [1.0, 2.0], "gap": 1e-2}, {"norms": [1.0, 0.0], "gap": 0.0}):
        found = cells(list(RANKED), {**one, "grpo": grpo}, two)
        assert [found[c]["result"] for c in RANKED] == ["fails"] * 5


def test_a_difference_in_float32_holds_only_where_float64_shows_that_it_is_rounding() -> None:
    wide, single, other = [[2.0, 1.0]], [[2.0, 1.001]], [[2.0, 1.0015]]
    row = cells([TOGETHER], {"single": single}, {"ddp": other, "fsdp": single, "zero3": single})
    assert row[TOGETHER]["result"] == "fails"
    one, two = {"single": single, "single64": wide}, {"ddp64": wide, "fsdp64": wide, "tp64": wide}
    assert rounding(row, one, two)[TOGETHER]["result"] == "works"
    assert not rounding(row, one, {**two, "fsdp64": [[2.0, 1.00001]]})  # a fault
    assert not rounding(row, {**one, "single64": [[2.0, 1.0009]]}, {**two, "ddp64": [[2.0, 1.0009]]})
    calm = {"single": single, "single64": single}
    assert not rounding(row, calm, dict.fromkeys(two, single))  # farther than its own rounding


@pytest.mark.slow
def test_two_ranks_are_one_for_a_family_with_state() -> None:
    row = run({"qwen3_5_text": list(RANKED)})["qwen3_5_text"]
    assert [row[column]["result"] for column in RANKED] == ["works"] * len(RANKED)


def test_the_page_is_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(load()), "make families"
    assert "untested" in page({})
