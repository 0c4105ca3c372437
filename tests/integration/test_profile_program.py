"""A run that records steps has the losses of one that does not, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Notice, Step, read_events

pytestmark = [pytest.mark.integration]


@pytest.mark.parametrize(
    ("strategy", "nproc"),
    [("single", 1), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("fsdp", "zero3"))],
)
def test_the_same_losses_with_and_without(
    tiny: Callable[..., dict[str, Any]],
    paceline: Callable[..., Run],
    tmp_path: Path,
    strategy: str,
    nproc: int,
) -> None:
    losses = []
    for name, profile in (("without", None), ("with", {"steps": "2-3,99", "ranks": "all"})):
        more = {"profile": profile} if profile else {}
        config = tiny(output_dir=str(tmp_path / name), max_steps=4, distributed_strategy=strategy, **more)
        done = paceline("train", str(write_yaml(tmp_path / f"{name}.yaml", config)), "--nproc", str(nproc))
        assert done.code == 0, done.err
        found = [record.event for record in read_events(RunDir.at(tmp_path / name).events(0))]
        losses.append([(e.loss, e.grad_norm) for e in found if isinstance(e, Step)])
        said = [
            e.diagnostic for e in found if isinstance(e, Notice) and e.diagnostic.code.startswith("profile.")
        ]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    assert [d.code for d in said] == ["profile.beyond", "profile.step", "profile.step"]
    assert "step 2 on rank 0 took" in said[1].what and "step 2 on rank 0 took" in done.out
    files = sorted(path.name for path in (tmp_path / "with" / "profile").glob("*.json"))
    assert files == sorted(
        f"step-{step:08d}-rank-{rank:05d}.json" for step in (2, 3) for rank in range(nproc)
    )
    numbers = json.loads((tmp_path / "with" / "profile" / files[0]).read_text(encoding="utf-8"))
    kinds = {name for name in numbers["layers"] if name[0].isupper()}
    assert any("Attention" in name for name in kinds) and "optimizer" in numbers["layers"]
    assert all(numbers["flops"][name] > 0 for name in numbers["flops"]) and len(numbers["flops"]) >= 3
