"""Tables and comparisons of runs, and the runs of a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.api.run import Run
from paceline.api.several_runs import (
    comparison,
    config_differences,
    facts_below,
    parted,
    planned_runs,
    table,
    values_of,
)
from paceline.cli.main import dispatch
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.runlog.events import Eval, EventLog, Finished, RunStarted, Step


def step_of(number: int, loss: float, lr: float, digest: str) -> Step:
    return Step(
        step=number,
        epoch=0.1,
        loss=loss,
        losses={"sft": loss},
        weights={"sft": 8},
        lr=lr,
        grad_norm=1.0,
        tokens=8,
        step_seconds=0.1,
        tokens_per_second=80.0,
        sample_digest=digest,
    )


def run_with(path: Path, losses: list[float], lr: float = 1e-3, digests: str = "aaaa", **config: Any) -> Run:
    """A run directory with these steps."""
    at = RunDir.at(path)
    at.events_dir.mkdir(parents=True)
    at.plan_json.write_text(json.dumps({"algorithm": "sft", "strategy": "single"}))
    training = {"learning_rate": lr, "output_dir": str(path), **config}
    at.config_json.write_text(json.dumps({"training": training}))
    with EventLog(at.events(0), 0) as log:
        log.write(RunStarted("digest", 1, None, 0, len(losses), "sft"))
        for number, loss in enumerate(losses, 1):
            log.write(step_of(number, loss, lr, digests[number - 1]))
        log.write(Eval(len(losses), {"eval_loss": losses[-1] + 0.5}, 0.1, rows=3, bins={}))
        log.write(Finished("completed", len(losses), 1.0))
    return Run(path)


def test_a_folder_of_runs_is_a_table(tmp_path: Path) -> None:
    run_with(tmp_path / "group" / "a", [3.0, 2.0])
    run_with(tmp_path / "b", [3.0, 1.0, 0.25])
    found = facts_below(tmp_path)
    assert [(one.path, one.step, one.loss, one.eval_loss) for one in found] == [
        ("b", 3, 0.25, 0.75),
        ("group/a", 2, 2.0, 2.5),
    ]
    assert table(found).splitlines()[1].split()[:6] == ["b", "completed", "3", "sft", "single", "0.2500"]
    with pytest.raises(ConfigError):
        facts_below(tmp_path / "b" / "events")


def test_where_two_runs_part(tmp_path: Path) -> None:
    first = run_with(tmp_path / "a", [3.0, 2.0, 1.0, 0.5], digests="aaaa")
    second = run_with(tmp_path / "b", [3.0, 2.0 + 1e-9, 1.1, 0.5], lr=1e-3, digests="aaab", seed=3)
    assert parted(first, second) == {"rows": 4, "learning rate": None, "loss": 3}
    assert config_differences(first, second) == {"training.seed": (None, 3)}
    text = comparison(first, second)
    assert "training.seed" in text and "differs from step 3 on" in text and "same at all 4 common" in text
    assert "output_dir" not in text


def test_curves_of_runs_on_one_picture(tmp_path: Path) -> None:
    from paceline.watch.summary_plots import draw_runs

    runs = [run_with(tmp_path / name, [3.0, 2.0]).path for name in ("a", "b")]
    assert draw_runs(runs, tmp_path / "c.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=1,2", ["1", "2"]),
        ("k=[a,b],[c]", ["[a,b]", "[c]"]),
        ("k={x: 1, y: 2}, null", ["{x: 1, y: 2}", "null"]),
        ("k=a=b", ["a=b"]),
    ],
)
def test_values_of_a_key(text: str, values: list[str]) -> None:
    assert values_of(text) == ("k", values)


@pytest.fixture
def config(tmp_path: Path, tiny: Any) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(tiny()))
    return file


def test_a_sweep_is_every_combination_and_does_none_twice(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    given = ["training.learning_rate=1e-3,1e-4", "training.seed=1,2", "training.max_steps=3"]
    runs = planned_runs(config, given, folder)
    assert [run.name for run in runs] == [
        f"learning_rate={lr}_seed={seed}" for lr in ("1e-3", "1e-4") for seed in (1, 2)
    ]
    assert all("training.max_steps=3" in run.settings and run.todo == "train" for run in runs)
    urls = planned_runs(config, [*given, "training.checkpoint_url=s3://bucket/sweep"], folder)
    assert [one.settings[-1] for one in urls] == [
        f"training.checkpoint_url=s3://bucket/sweep/{run.name}" for run in runs
    ], "each run writes to a URL of its own"
    run_with(runs[0].path, [1.0])
    run_with(runs[1].path, [1.0])
    RunDir.at(runs[1].path).events(0).write_text("")
    assert [run.todo for run in planned_runs(config, given, folder)] == ["done", "again", "train", "train"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["training.seed=1"], "nothing to compare"),
        (["training.seed"], "no key with values"),
        (["training.seed=1,1"], "same folder"),
        (["training.seed=1,x"], "training.seed"),
        ([f"training.seed={','.join(map(str, range(1001)))}"], "more than 1,000"),
    ],
)
def test_a_sweep_that_cannot_start_is_refused_whole(
    config: Path, tmp_path: Path, given: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.cli.training.call", lambda *_: pytest.fail("a run was started"))
    with pytest.raises(ConfigError, match=words):
        dispatch(["sweep", str(config), *given, "--to", str(tmp_path / "sweep")])


def test_words_that_name_no_runs_are_refused(tmp_path: Path) -> None:
    for words in (["compare", "a"], [str(tmp_path), "b"]):
        with pytest.raises(ConfigError) as refused:
            dispatch(["runs", *words])
        assert refused.value.diagnostics[0].code == "cli.option"


def test_the_best_evaluation_of_scored_answers_is_the_greatest_reward(tmp_path: Path) -> None:
    run = run_with(tmp_path / "grpo", [1.0, 2.0])
    at = RunDir.at(run.path)
    at.events(0).unlink()
    with EventLog(at.events(0), 0) as log:
        for step, reward in ((1, 0.25), (2, 0.75), (3, 0.5)):
            log.write(Eval(step, {"eval_reward": reward}, 0.1, rows=3, bins={}))
    (facts,) = facts_below(tmp_path)
    assert facts.eval_reward == 0.75 and "0.7500" in table([facts])
