"""``paceline verify`` on a strategy that is right, and on one that is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml

pytestmark = [pytest.mark.e2e]
HALVED = '''
"""A strategy that averages twice: its ranks agree with each other, and with nobody else."""
from paceline.strategies.ddp import DDP


class Halved(DDP):
    def finish(self, handle, *, lr, max_grad_norm):
        for parameter in handle.parameters():
            parameter.grad.div_(2)
        return super().finish(handle, lr=lr, max_grad_norm=max_grad_norm)
'''


def test_a_strategy_that_is_wrong_is_told_with_step_and_parameter(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(HALVED)
    config = tiny(distributed_strategy="mine:Halved")
    config["training"].pop("max_steps")
    yaml = write_yaml(tmp_path / "c.yaml", config)
    done = paceline(
        "verify",
        str(yaml),
        "--nproc",
        "2",
        "--steps",
        "2",
        "--no-probe",
        "--against",
        "single",
        "--to",
        "out",
    )
    assert done.code == 1, done.out + done.err
    assert "the runs differ: at step 1" in done.out
    report = json.loads((tmp_path / "out" / "verify.json").read_text())
    assert not report["agrees"] and report["rows"][0]["parameter"]


@pytest.mark.slow
def test_ddp_is_right_and_the_cut_of_a_batch_makes_no_difference(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    yaml = write_yaml(
        tmp_path / "c.yaml", {**tiny(distributed_strategy="ddp", gradient_accumulation_steps=2)}
    )
    done = paceline("verify", str(yaml), "--nproc", "2", "--steps", "2", deadline=250)
    assert done.code == 0, done.out + done.err
    assert "the runs agree" in done.out and "the split makes no difference" in done.out
    assert not any(tmp_path.glob("run*"))  # the user's own run directory is untouched


def test_a_run_that_fails_is_told_with_its_own_words(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    config = tiny()
    config["data"]["train"] = str(tmp_path / "nothing.json")
    done = paceline("verify", str(write_yaml(tmp_path / "c.yaml", config)))
    assert done.code in (1, 2) and "nothing.json" in done.err
