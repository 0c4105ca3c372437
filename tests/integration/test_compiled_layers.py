"""Compiled layers under ddp, fsdp and tensor parallelism: six steps equal those of uncompiled layers,
and after the first window nothing is compiled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.integration]
WORKER = Path(__file__).with_name("compile_worker.py")
BOUNDS = {"float64": 1e-10, "bfloat16": 5e-3}
TRACED = ("fsdp_recompute/float64/eager",)
MORE = ("ddp/float64/eager", "tp_sp_lp/float64/eager")
DIFFERENTIATED = ("fsdp/bfloat16/aot_eager", "tp/float64/aot_eager", "tp_sp_lp/float64/aot_eager")


def _largest(a: Any, b: Any) -> float:
    return max(abs(x - y) for name in a for x, y in zip(a[name], b[name], strict=True))


@pytest.mark.parametrize(
    "cases",
    [
        TRACED,
        pytest.param(MORE, marks=pytest.mark.full),
        pytest.param(DIFFERENTIATED, marks=pytest.mark.slow),
    ],
)
def test_compiled_layers_train_as_uncompiled_ones(cases: tuple[str, ...], tmp_path: Path) -> None:
    codes, output = run_ranks("+".join(cases), 2, tmp_path / "out", deadline=450, script=WORKER)
    assert codes == [0, 0], "\n".join(output)
    for rank in range(2):
        found = json.loads((tmp_path / "out" / f"{rank}.json").read_text())
        assert found.keys() == set(cases)
        for case, run in found.items():
            bound = BOUNDS[case.split("/")[1]]
            plain, compiled = run["plain"], run["changed"]
            for a, b in zip(plain["steps"], compiled["steps"], strict=True):
                assert abs(a["loss"] - b["loss"]) <= bound * abs(a["loss"]), case
            assert _largest(plain["parameters"], compiled["parameters"]) < bound, case
            first, last = compiled["graphs"]
            assert 1 <= first == last <= 2, (case, compiled["note"])
            assert "3 decoder layers by torch.compile" in compiled["note"]


@pytest.mark.slow
def test_what_recomputation_keeps_changes_no_bit(tmp_path: Path) -> None:
    """Against training without recomputation, under ddp, fsdp and tensor with sequence parallelism."""
    cases = ("ddp/float64/keep", "fsdp/float32/keep", "tp_sp_lp/float64/keep")
    codes, output = run_ranks("+".join(cases), 2, tmp_path / "out", script=WORKER)
    assert codes == [0, 0], "\n".join(output)
    for rank in range(2):
        found = json.loads((tmp_path / "out" / f"{rank}.json").read_text())
        for case in cases:
            plain, kept = found[case]["plain"], found[case]["changed"]
            assert plain["steps"] == kept["steps"], case
            assert plain["parameters"] == kept["parameters"], case
