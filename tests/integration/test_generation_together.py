"""Answers written by ranks that each hold a part of the weights: all go through the model together, and
learn what one process learns.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run
from test_grpo_program import events_of, grpo, numbers, train

from paceline.runlog.events import Eval

pytestmark = [pytest.mark.integration]
__all__ = ["grpo"]  # the fixture
ZERO3 = pytest.param(
    "zero3",
    "float32",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="needs the extra deepspeed"
    ),
)


@pytest.mark.parametrize(("strategy", "dtype"), [("fsdp", "float64"), ZERO3])
def test_a_layer_gathered_at_a_time_gives_the_answers_of_one_process(
    strategy: str,
    dtype: str,
    grpo: Callable[..., dict[str, Any]],
    paceline: Callable[..., Run],
    tmp_path: Path,
) -> None:
    """Answers differ in length, and the held-out prompt is one rank's alone: the other goes along. Two
    rollouts of several updates.
    """

    def config(name: str, ranks: int, **training: Any) -> dict[str, Any]:
        found = grpo(name, ranks, dtype=dtype, eval_strategy="steps", eval_steps=3, **training)
        found["data"]["validation_split"] = 1
        found["training"]["rollout"]["gather_for_generation"] = False
        return found

    alone = train(paceline, config("alone", 1), tmp_path, 1)
    together = train(paceline, config("together", 2, distributed_strategy=strategy), tmp_path, 2)
    assert (
        json.loads((tmp_path / "together/plan.json").read_text())["engine"]["gather_for_generation"] is False
    )
    exact = {"abs": 1e-10} if dtype == "float64" else {"rel": 2e-3, "abs": 1e-4}
    for one, two in zip(alone, together, strict=True):
        assert two.sample_digest == one.sample_digest
        assert numbers(two) == pytest.approx(numbers(one), **exact), one.step  # type: ignore[arg-type]
    found = [
        [e.metrics for e in events_of(tmp_path / name) if isinstance(e, Eval)]
        for name in ("alone", "together")
    ]
    assert len(found[0]) == 2 and found[0] == [pytest.approx(metrics, **exact) for metrics in found[1]]  # type: ignore[arg-type]
