"""An algorithm and a kind of row from outside the tree, in runs of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, worker_environment, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Eval, Step, read_events

pytestmark = [pytest.mark.integration]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPEC = """
from dataclasses import replace
from custom_algorithm_spec import SPEC as FOCAL
SPEC = replace(FOCAL, rows="own_rows:KIND", implementation="own_algorithm:Weighted", evaluated=("eval_loss",))
"""
ROWS = """
from dataclasses import replace
from paceline.data.rows.kinds.base import Documents

class Weighed(Documents):
    columns = ("weight",)

    def normalise(self, row, shape):
        (example,) = super().normalise(row, shape)
        return (replace(example, values={"weight": float(row["instruction"].count("1") + 1)}),)

KIND = Weighed()
"""
ALGORITHM = """
from custom_algorithm import Focal

class Weighted(Focal):
    def losses(self, role, outputs, batch):
        assert batch.extras["weight"].numel() == batch.document_ids.numel()
        assert all((weight > 0) == (number >= 0) for weight, number in zip(batch.extras["weight"], batch.document_ids))
        return super().losses(role, outputs, batch)
"""  # noqa: E501


def test_one_of_ones_own_learns_from_rows_of_ones_own_what_sft_learns_where_it_is_sft(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    for name, source in (("own_spec", SPEC), ("own_rows", ROWS), ("own_algorithm", ALGORITHM)):
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    environ = {"PYTHONPATH": f"{tmp_path}:{EXAMPLES}:{worker_environment()['PYTHONPATH']}"}
    losses, evaluated = {}, {}
    for number, (algorithm, options) in enumerate((("sft", {}), ("own_spec:SPEC", {"gamma": 0.0}))):
        run = tmp_path / f"run{number}"
        config = tiny(
            output_dir=str(run),
            algorithm=algorithm,
            algorithm_options=options,
            max_steps=3,
            eval_strategy="steps",
            eval_steps=3,
        )
        config["data"]["validation_split"] = 4
        done = paceline(
            "train", str(write_yaml(tmp_path / f"{number}.yaml", config)), "--nproc", "2", env=environ
        )
        assert done.code == 0, done.err
        events = [record.event for record in read_events(RunDir.at(run).events(0))]
        losses[number] = [e.loss for e in events if isinstance(e, Step)]
        evaluated[number] = [e.metrics for e in events if isinstance(e, Eval)]
        assert json.loads((run / "plan.json").read_text())["algorithm"] == algorithm
    assert losses[1] == pytest.approx(losses[0], abs=2e-6) and len(losses[0]) == 3
    (theirs,), (mine,) = evaluated[0], evaluated[1]
    assert (
        mine["eval_loss"] == pytest.approx(theirs["eval_loss"], abs=2e-6)
        and "eval_token_accuracy" not in mine
    )
