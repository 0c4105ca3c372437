"""``distributed_strategy: fastest`` trains as it is, and as the layout that it takes would, were it
spelled out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Step, read_events

pytestmark = [pytest.mark.integration]
LAYOUT = (
    "distributed_strategy",
    "parallelism",
    "fsdp",
    "deepspeed",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
)


def steps_of(run: Path) -> list[tuple[float, float | None, str]]:
    events = [record.event for record in read_events(RunDir.at(run).events(0))]
    return [(e.loss, e.grad_norm, e.sample_digest) for e in events if isinstance(e, Step)]


def test_the_fastest_layout_trains_as_it_does_spelled_out(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    asked = tiny(
        distributed_strategy="fastest",
        max_steps=3,
        gradient_accumulation_steps=2,
        output_dir=str(tmp_path / "run"),
    )
    first = paceline("train", str(write_yaml(tmp_path / "fastest.yaml", asked)), "--nproc", "2")
    assert first.code == 0, first.err
    plan = json.loads(RunDir.at(tmp_path / "run").plan_json.read_text())
    assert plan["batch"]["micro_batch"] * plan["batch"]["accumulation"] * 2 == 8, "the rows of a step stay"
    taken = {key: plan["config"]["training"][key] for key in LAYOUT}
    assert taken["distributed_strategy"] == plan["strategy"] != "fastest"
    spelled = {**asked, "training": {**asked["training"], **taken, "output_dir": str(tmp_path / "spelled")}}
    second = paceline("train", str(write_yaml(tmp_path / "spelled.yaml", spelled)), "--nproc", "2")
    assert second.code == 0, second.err
    other = json.loads(RunDir.at(tmp_path / "spelled").plan_json.read_text())
    same = ("strategy", "mesh", "batch", "precision", "engine", "memory", "recompute", "optimizer", "seq_len")
    assert {key: plan[key] for key in same} == {key: other[key] for key in same}
    assert len(steps_of(tmp_path / "run")) == 3 and steps_of(tmp_path / "run") == steps_of(
        tmp_path / "spelled"
    )
